//! Validates a query; errors name the field and the rule.

use std::collections::BTreeSet;

use pagelith_layouts::ids::PrefixHash;
use pagelith_layouts::key::{ObjectKey, Role};

use super::{HitPolicy, PagesQuery};
use crate::api::error::{Error, Result};

/// Refuse an invalid query.
pub fn check(query: &PagesQuery<'_>) -> Result<()> {
    let mut lists = vec![("anchor".to_owned(), query.anchor)];
    for (i, pool) in query.pools.iter().enumerate() {
        let field = format!("pools[{i}].objects");
        if pool.objects.is_empty() {
            let message =
                format!("only an anchor may have no objects field={field} objects=0 min=1");
            return Err(Error::invalid(message));
        }
        check_policy(&pool.policy, &format!("pools[{i}].policy"))?;
        lists.push((field, pool.objects));
    }
    let decides = |policy: HitPolicy<'_>| !matches!(policy, HitPolicy::BlockGroups { .. });
    if query.anchor.is_empty() && !query.pools.iter().any(|pool| decides(pool.policy)) {
        let message =
            "an anchor without objects needs a pool with all_pages or trailing_pages field=pools";
        return Err(Error::invalid(message));
    }
    let (mut pools, mut first) = (BTreeSet::new(), None);
    for (field, objects) in lists {
        let Some(pool) = check_objects(objects, &field, &mut first)? else { continue };
        if !pools.insert(pool.clone()) {
            return Err(Error::invalid(format!(
                "a query names a pool twice field={field} pool={pool}"
            )));
        }
    }
    Ok(())
}

fn check_policy(policy: &HitPolicy<'_>, field: &str) -> Result<()> {
    let HitPolicy::BlockGroups { block_pages, group_pages, .. } = *policy else { return Ok(()) };
    let refuse = |what: &str, rule: String| Err(Error::invalid(format!("{what} {rule}")));
    match (block_pages, group_pages) {
        (0, _) => refuse(
            "a block covers no page",
            format!("field={field}.block_pages block_pages=0 min=1"),
        ),
        (_, 0) => {
            refuse("a group has no key", format!("field={field}.group_pages group_pages=0 min=1"))
        }
        (block, group) if group > block => {
            let rule = format!("field={field}.group_pages group_pages={group} max={block}");
            refuse("a group has more keys than its block has pages", rule)
        }
        _ => Ok(()),
    }
}

/// The pool of all `objects`. `first` is the query's first object, whose namespace all others must
/// share.
fn check_objects(
    objects: &[ObjectKey],
    field: &str,
    first: &mut Option<ObjectKey>,
) -> Result<Option<String>> {
    let mut seen = BTreeSet::new();
    for (i, object) in objects.iter().enumerate() {
        let (namespace, expected) = (object.namespace(), first.get_or_insert(*object).namespace());
        if namespace != expected {
            let rule = format!("field={field}[{i}] namespace={namespace} other={expected}");
            return Err(Error::invalid(format!("a query has objects of two namespaces {rule}")));
        }
        let (pool, expected) = (pool_of(object), pool_of(&objects[0]));
        if pool != expected {
            let rule = format!("field={field}[{i}] pool={pool} other={expected}");
            return Err(Error::invalid(format!("a list of objects is of two pools {rule}")));
        }
        // Templates have no meaningful hash.
        if !seen.insert(object.on_page(PrefixHash([0; 32]))) {
            let (component, shard) = (object.component(), object.shard());
            let rule = format!("field={field}[{i}] component={component} shard={shard}");
            return Err(Error::invalid(format!("a list of objects has one twice {rule}")));
        }
    }
    Ok(objects.first().map(pool_of))
}

/// A pool's name as printed in keys.
fn pool_of(object: &ObjectKey) -> String {
    let draft = if object.role() == Role::Draft { "d:" } else { "" };
    format!("{draft}{}", object.pool())
}

#[cfg(test)]
mod tests {
    use pagelith_layouts::ids::NamespaceId;
    use pagelith_layouts::shard::Shard;

    use super::super::PoolQuery;
    use super::*;
    use crate::api::error::ErrorKind;

    fn object(role: Role, pool: &str, component: &str) -> ObjectKey {
        ObjectKey::new(
            NamespaceId([1; 16]),
            PrefixHash([9; 32]),
            role,
            pool,
            component,
            Shard::Whole,
        )
        .expect("valid names")
    }

    fn foreign() -> ObjectKey {
        ObjectKey::new(
            NamespaceId([2; 16]),
            PrefixHash([9; 32]),
            Role::Target,
            "mamba",
            "x",
            Shard::Whole,
        )
        .expect("valid names")
    }

    const MAMBA: HitPolicy<'_> = HitPolicy::TrailingPages(1);

    fn checked(anchor: &[ObjectKey], pools: &[(&[ObjectKey], HitPolicy<'_>)]) -> Result<()> {
        let pools: Vec<_> =
            pools.iter().map(|&(objects, policy)| PoolQuery { objects, policy }).collect();
        check(&PagesQuery { pages: &[], anchor, pools: &pools })
    }

    #[test]
    fn valid_queries_are_accepted() {
        let (k, v) = (object(Role::Target, "kv", "k"), object(Role::Target, "kv", "v"));
        let draft = object(Role::Draft, "kv", "k");
        assert_eq!(checked(&[k, v], &[]), Ok(()));
        assert_eq!(
            checked(&[k, v], &[(&[draft], HitPolicy::AllPages)]),
            Ok(()),
            "a draft model has its own pool"
        );
        assert_eq!(
            checked(&[], &[(&[k], HitPolicy::TrailingPages(0))]),
            Ok(()),
            "an anchor without objects"
        );
        // Templates have no meaningful hash, so keys of any page will do.
        assert_eq!(checked(&[k.on_page(PrefixHash([3; 32])), v], &[]), Ok(()));
        let groups = HitPolicy::BlockGroups { block_pages: 2, group_pages: 2, keys: &[] };
        assert_eq!(checked(&[k], &[(&[draft], groups)]), Ok(()));
    }

    #[test]
    fn invalid_queries_are_refused_by_field_and_rule() {
        let (k, v) = (object(Role::Target, "kv", "k"), object(Role::Target, "kv", "v"));
        let (x, draft) = (object(Role::Target, "mamba", "x"), object(Role::Draft, "kv", "v"));
        let again = k.on_page(PrefixHash([3; 32]));
        let groups = |block_pages, group_pages| HitPolicy::BlockGroups {
            block_pages,
            group_pages,
            keys: &[],
        };
        let (ours, other) = (k.namespace(), foreign().namespace());
        let no_restricting_pool =
            "an anchor without objects needs a pool with all_pages or trailing_pages field=pools";
        let cases: [(Result<()>, String); 12] = [
            (checked(&[], &[]), no_restricting_pool.into()),
            (checked(&[], &[(&[x], groups(1, 1))]), no_restricting_pool.into()),
            (
                checked(&[k], &[(&[x], MAMBA), (&[], MAMBA)]),
                "only an anchor may have no objects field=pools[1].objects objects=0 min=1".into(),
            ),
            (
                checked(&[k], &[(&[foreign()], MAMBA)]),
                format!(
                    "a query has objects of two namespaces field=pools[0].objects[0] namespace={other} other={ours}"
                ),
            ),
            (
                checked(&[], &[(&[x], MAMBA), (&[foreign()], MAMBA)]),
                format!(
                    "a query has objects of two namespaces field=pools[1].objects[0] namespace={other} other={ours}"
                ),
            ),
            (checked(&[k, x], &[]), "a list of objects is of two pools field=anchor[1] pool=mamba other=kv".into()),
            (checked(&[k, draft], &[]), "a list of objects is of two pools field=anchor[1] pool=d:kv other=kv".into()),
            (
                checked(&[v, k, again], &[]),
                "a list of objects has one twice field=anchor[2] component=k shard=whole".into(),
            ),
            (checked(&[k], &[(&[v], MAMBA)]), "a query names a pool twice field=pools[0].objects pool=kv".into()),
            (
                checked(&[k], &[(&[x], groups(0, 0))]),
                "a block covers no page field=pools[0].policy.block_pages block_pages=0 min=1".into(),
            ),
            (
                checked(&[k], &[(&[x], groups(4, 0))]),
                "a group has no key field=pools[0].policy.group_pages group_pages=0 min=1".into(),
            ),
            (
                checked(&[k], &[(&[x], groups(4, 5))]),
                "a group has more keys than its block has pages field=pools[0].policy.group_pages group_pages=5 max=4"
                    .into(),
            ),
        ];
        for (outcome, message) in cases {
            let error = outcome.expect_err(&message);
            assert_eq!((error.kind, error.message), (ErrorKind::Invalid, message));
        }
    }
}
