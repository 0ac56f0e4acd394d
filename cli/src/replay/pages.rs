//! Mapping of a trace's blocks to objects: each block is a page, and a page has the objects of its
//! pools.

use anyhow::{Context, bail};
use pagelith::layouts::geometry::{Geometry, HitPolicy, Model, Placement, Pool as ModelPool};
use pagelith::layouts::ids::PrefixHash;
use pagelith::layouts::key::{ObjectKey, Role};
use pagelith::layouts::namespace::{Namespace, opaque_hash};
use pagelith::layouts::shard::Shard;

/// Tokens per page of a replay without a model.
const PAGE_TOKENS: u32 = 512;

/// An object of a page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Object {
    template: ObjectKey,
    pub(crate) bytes: usize,
    /// Number of its pool.
    pub(crate) pool: usize,
}

impl Object {
    /// The key of the object on `page`.
    pub(crate) fn key(&self, page: PrefixHash) -> ObjectKey {
        self.template.on_page(page)
    }
}

/// A pool: one kind of state of a model.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    /// The client's name of the pool.
    pub(crate) name: String,
    /// Number of last pages of a request that have it; `None` if every page has it.
    pub(crate) trailing: Option<usize>,
    /// The pool's objects of one page; never empty.
    pub(crate) objects: Vec<Object>,
    /// Their keys, without a page.
    pub(crate) templates: Vec<ObjectKey>,
}

/// Objects of one page that become visible together: its base group, or the objects of a trailing
/// pool that are attached to that.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageGroup<'a> {
    /// Number of the page in its request.
    pub(crate) page: usize,
    pub(crate) hash: PrefixHash,
    pub(crate) objects: &'a [Object],
}

impl PageGroup<'_> {
    pub(crate) fn keys(&self) -> impl Iterator<Item = ObjectKey> {
        self.objects.iter().map(|object| object.key(self.hash))
    }

    pub(crate) fn bytes(&self) -> usize {
        self.objects.iter().map(|object| object.bytes).sum()
    }
}

/// The keys and lengths of the objects of a replay.
#[derive(Clone, Debug)]
pub(crate) struct Pages {
    /// The pools, beginning with the anchor pool.
    pools: Vec<Pool>,
    /// Objects of the pools that every page has.
    base: Vec<Object>,
    /// The model, if one was given.
    pub(crate) model: Option<String>,
}

/// The choice of a model, and of its pools.
pub(crate) struct ModelChoice<'a> {
    pub(crate) model: &'a Model,
    pub(crate) placement: &'a Placement,
    /// The clients' names of the pools; `None` for all.
    pub(crate) pools: Option<&'a [String]>,
    /// Divisor of the bytes of every component, rounded up.
    pub(crate) scale: u64,
}

impl Pages {
    /// Pages for one source, seed and object length. Replays that differ in these have no keys in
    /// common, since their contents differ. Each page is a group of two objects, `k` and `v`, of
    /// pool `kv`.
    pub(crate) fn plain(source: &str, seed: u64, object_bytes: u64) -> anyhow::Result<Pages> {
        let extra = [
            ("source", source.to_owned()),
            ("seed", seed.to_string()),
            ("bytes", object_bytes.to_string()),
        ];
        let namespace = Namespace {
            model: "replay".to_owned(),
            page_tokens: PAGE_TOKENS,
            extra: extra.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
            ..Namespace::default()
        };
        let template = |component| {
            ObjectKey::new(
                namespace.id(),
                PrefixHash([0; 32]),
                Role::Target,
                "kv",
                component,
                Shard::Whole,
            )
        };
        let templates = vec![template("k")?, template("v")?];
        let bytes = usize::try_from(object_bytes)?;
        Pages::of_pools(vec![Pool::new("kv", None, templates, &[bytes; 2])], None)
    }

    /// Pages of a model for one source and seed.
    pub(crate) fn of_model(
        source: &str,
        seed: u64,
        chosen: &ModelChoice<'_>,
    ) -> anyhow::Result<Pages> {
        let ModelChoice { model, placement, scale, .. } = *chosen;
        let geometry = Geometry::new(model, placement).context("the model is refused")?;
        let selected = select_pools(&geometry, chosen.pools)?;
        let names: Vec<String> = selected.iter().map(|pool| pool.client_name()).collect();
        // Everything on which contents, lengths and groups of a page depend.
        let extra = [
            ("source", source.to_owned()),
            ("seed", seed.to_string()),
            ("scale", scale.to_string()),
            ("tp", placement.tp.of.to_string()),
            ("pools", names.join(",")),
        ];
        let namespace = Namespace {
            model: format!("replay/{}", model.name),
            page_tokens: model.page_tokens,
            layout: placement.layout.name().to_owned(),
            extra: extra.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
            ..Namespace::default()
        };
        let mut pools = Vec::with_capacity(selected.len());
        for (pool, name) in selected.into_iter().zip(&names) {
            let mut templates = Vec::with_capacity(pool.components.len());
            pool.keys(namespace.id(), PrefixHash([0; 32]), &mut templates)?;
            let scaled = pool.components.iter().map(|c| usize::try_from(c.bytes.div_ceil(scale)));
            let bytes: Vec<usize> = scaled.collect::<Result<_, _>>()?;
            let trailing = match pool.hit {
                HitPolicy::AllPages => None,
                HitPolicy::TrailingPages(pages) => Some(usize::try_from(pages)?.max(1)),
            };
            pools.push(Pool::new(name, trailing, templates, &bytes));
        }
        Pages::of_pools(pools, Some(model.name.clone()))
    }

    fn of_pools(mut pools: Vec<Pool>, model: Option<String>) -> anyhow::Result<Pages> {
        pools.sort_by_key(|pool| pool.trailing.is_some());
        for (number, pool) in pools.iter_mut().enumerate() {
            pool.objects.iter_mut().for_each(|object| object.pool = number);
        }
        let of_every_page = pools.iter().filter(|pool| pool.trailing.is_none());
        let base: Vec<Object> =
            of_every_page.flat_map(|pool| pool.objects.iter().copied()).collect();
        if base.is_empty() {
            let names: Vec<&str> = pools.iter().map(|pool| pool.name.as_str()).collect();
            bail!(
                "only the last pages of a request have these pools: add one that every page has --pools={}",
                names.join(",")
            );
        }
        Ok(Pages { pools, base, model })
    }

    /// The prefix hash of the page with this trace id. A trace id identifies a block and all blocks
    /// before it, as a prefix hash does.
    pub(crate) fn hash(id: u64) -> PrefixHash {
        opaque_hash(&id.to_le_bytes())
    }

    /// The pools; those of every page come first.
    pub(crate) fn pools(&self) -> &[Pool] {
        &self.pools
    }

    /// Objects of the base group; those of the anchor pool come first.
    pub(crate) fn base(&self) -> &[Object] {
        &self.base
    }

    /// The base group of a page.
    pub(crate) fn unit(&self, page: usize, hash: PrefixHash) -> PageGroup<'_> {
        PageGroup { page, hash, objects: &self.base }
    }

    /// The units of the trailing pools for a prefix that ends with the last of these pages.
    pub(crate) fn trailing_units<'a>(
        &'a self,
        prefix: &'a [PrefixHash],
    ) -> impl Iterator<Item = PageGroup<'a>> {
        self.pools.iter().filter_map(|pool| Some((pool, pool.trailing?))).flat_map(
            |(pool, pages)| {
                let from = prefix.len().saturating_sub(pages);
                let unit = |(page, hash): (usize, &PrefixHash)| PageGroup {
                    page,
                    hash: *hash,
                    objects: &pool.objects,
                };
                prefix.iter().enumerate().skip(from).map(unit)
            },
        )
    }

    /// Whether there are several pools, so that a client looks up, reads and writes pool by pool.
    pub(crate) fn is_hybrid(&self) -> bool {
        self.pools.len() > 1
    }

    pub(crate) fn has_trailing(&self) -> bool {
        self.pools.iter().any(|pool| pool.trailing.is_some())
    }

    /// Bytes of a page that has all pools.
    pub(crate) fn page_bytes(&self) -> u64 {
        self.pools.iter().flat_map(|pool| &pool.objects).map(|object| object.bytes as u64).sum()
    }
}

impl Pool {
    fn new(
        name: &str,
        trailing: Option<usize>,
        templates: Vec<ObjectKey>,
        bytes: &[usize],
    ) -> Pool {
        let object = |(template, bytes): (&ObjectKey, &usize)| Object {
            template: *template,
            bytes: *bytes,
            pool: 0,
        };
        let objects = templates.iter().zip(bytes).map(object).collect();
        Pool { name: name.to_owned(), trailing, objects, templates }
    }
}

/// The chosen pools in the geometry's order. Pools without components are skipped.
fn select_pools<'a>(
    geometry: &'a Geometry,
    chosen: Option<&[String]>,
) -> anyhow::Result<Vec<&'a ModelPool>> {
    let all: Vec<&ModelPool> =
        geometry.pools.iter().filter(|pool| !pool.components.is_empty()).collect();
    let Some(chosen) = chosen else { return Ok(all) };
    for (i, name) in chosen.iter().enumerate() {
        if !all.iter().any(|pool| pool.client_name() == *name) {
            let known: Vec<String> = all.iter().map(|pool| pool.client_name()).collect();
            bail!("the model has no such pool, choose among {} --pools={name:?}", known.join(", "));
        }
        if chosen.iter().take(i).any(|before| before == name) {
            bail!("a pool is named twice --pools={name:?}");
        }
    }
    Ok(all.into_iter().filter(|pool| chosen.contains(&pool.client_name())).collect())
}

#[cfg(test)]
mod tests {
    use pagelith::layouts::geometry::{Layout, presets};

    use super::*;

    fn keys(pages: &Pages) -> Vec<ObjectKey> {
        [5, 6]
            .iter()
            .flat_map(|id| pages.unit(0, Pages::hash(*id)).keys().collect::<Vec<_>>())
            .collect()
    }

    #[test]
    fn plain_page_has_two_objects_and_runs_share_no_keys() {
        let plain = |source, seed, bytes| keys(&Pages::plain(source, seed, bytes).unwrap());
        let own = plain("chat", 1, 100);
        assert_eq!(own, plain("chat", 1, 100));
        assert_eq!(own.len(), 4);
        assert!(own[0].same_page(&own[1]) && !own[1].same_page(&own[2]));
        assert_ne!(own[0], own[1]);
        for other in [plain("trace", 1, 100), plain("chat", 2, 100), plain("chat", 1, 101)] {
            assert!(own.iter().all(|key| !other.contains(key)));
        }
    }

    fn of_model(
        name: &str,
        tp: u16,
        scale: u64,
        layout: Layout,
        pools: Option<&[&str]>,
    ) -> anyhow::Result<Pages> {
        let model = presets::model(name).unwrap();
        let placement = Placement::tensor_parallel(layout, 0, tp);
        let pools: Option<Vec<String>> =
            pools.map(|names| names.iter().map(|n| (*n).to_owned()).collect());
        let chosen =
            ModelChoice { model: &model, placement: &placement, pools: pools.as_deref(), scale };
        Pages::of_model("chat", 1, &chosen)
    }

    #[test]
    fn each_parameter_of_a_page_changes_its_keys() {
        let hybrid = "deepseek-v3.2+deepseek-v3.2-mtp";
        let own = keys(&of_model(hybrid, 1, 64, Layout::PageFirst, None).unwrap());
        let others = [
            of_model("deepseek-v3.2", 1, 64, Layout::PageFirst, None),
            of_model(hybrid, 2, 64, Layout::PageFirst, None),
            of_model(hybrid, 1, 63, Layout::PageFirst, None),
            of_model(hybrid, 1, 64, Layout::PageFirstDirect, None),
            of_model(hybrid, 1, 64, Layout::PageFirst, Some(&["kv", "indexer", "draft"])),
        ];
        for (i, other) in others.into_iter().enumerate() {
            let other = keys(&other.unwrap());
            assert!(own.iter().all(|key| !other.contains(key)), "other={i}");
        }
    }

    #[test]
    fn model_has_its_pools_in_order_with_scaled_bytes() {
        let shape = |pages: &Pages| -> Vec<(String, Option<usize>, Vec<usize>)> {
            let bytes = |pool: &Pool| pool.objects.iter().map(|o| o.bytes).collect();
            pages.pools().iter().map(|p| (p.name.clone(), p.trailing, bytes(p))).collect()
        };
        // Sizes of CONTRACTS: 786,432 for k and for v, 75,497,472 and 1,769,472 for the states.
        let qwen = of_model("qwen3-next", 1, 64, Layout::PageFirst, None).unwrap();
        let expected = [("kv", None, vec![12_288; 2]), ("mamba", Some(1), vec![1_179_648, 27_648])];
        assert_eq!(
            shape(&qwen),
            expected.map(|(name, trailing, bytes)| (name.to_owned(), trailing, bytes))
        );
        // 2,561,024 bytes of rows and 515,328 of index keys do not divide by 1,000.
        let chosen = ["draft_indexer", "indexer", "kv"];
        let deepseek =
            of_model("deepseek-v3.2+deepseek-v3.2-mtp", 1, 1000, Layout::PageFirst, Some(&chosen))
                .unwrap();
        let expected = [
            ("kv", None, vec![2_562]),
            ("indexer", None, vec![516]),
            ("draft_indexer", None, vec![9]),
        ];
        assert_eq!(
            shape(&deepseek),
            expected.map(|(name, trailing, bytes)| (name.to_owned(), trailing, bytes))
        );
        let tiny = of_model("gpt-oss-20b", 1, u64::MAX, Layout::PageFirst, None).unwrap();
        assert_eq!((tiny.page_bytes(), tiny.base().len()), (4, 2));
    }

    #[test]
    fn trailing_pool_has_the_last_pages_of_a_prefix() {
        let pages = of_model("gpt-oss-20b", 1, 64, Layout::PageFirst, None).unwrap();
        let hashes: Vec<PrefixHash> = (0..5).map(Pages::hash).collect();
        let found = |prefix: &[PrefixHash]| -> Vec<usize> {
            pages.trailing_units(prefix).map(|unit| unit.page).collect()
        };
        assert_eq!(
            (found(&hashes), found(&hashes[..1]), found(&[])),
            (vec![3, 4], vec![0], vec![])
        );
    }
}
