//! Offsets, sizes and order compared with the tensor model.

use std::collections::{BTreeMap, HashSet};

use pagelith_layouts::geometry::*;
use pagelith_layouts::ids::{NamespaceId, PrefixHash};
use proptest::prelude::*;

use super::random::{fits, layout, model, sizes};
use super::{config, tensor_model};

proptest! {
    #![proptest_config(config(256))]

    /// Compares pools, components, shards and sizes, and then every byte of every page.
    #[test]
    fn geometry_equals_tensor_model(
        model in model(), sizes in sizes(), layout in layout(), pages in 1..4u64,
    ) {
        let place = sizes.place(&model, layout);
        let made = Geometry::new(&model, &place);
        prop_assert_eq!(made.is_ok(), fits(&model, layout), "{:?}", made);
        let Ok(geometry) = made else { return Ok(()) };
        let expected = tensor_model::pools(&model, &place);
        prop_assert_eq!(geometry.pools.len(), expected.len());
        for (pool, expected) in geometry.pools.iter().zip(&expected) {
            same_facts(pool, expected)?;
            same_bytes(pool, expected, pages)?;
        }
    }
}

fn same_facts(pool: &Pool, expected: &tensor_model::ModelPool) -> Result<(), TestCaseError> {
    prop_assert_eq!(
        (pool.role, &pool.name, pool.hit, pool.writes),
        (expected.role, &expected.name, expected.hit, expected.writes)
    );
    let components: Vec<_> = pool.components.iter().map(|c| (c.name.clone(), c.shard)).collect();
    prop_assert_eq!(&components, &expected.components);
    prop_assert_eq!(pool.buffers.len(), expected.buffers.len());
    let (namespace, hash) = (NamespaceId([3; 16]), PrefixHash([4; 32]));
    let mut keys = Vec::new();
    pool.keys(namespace, hash, &mut keys).expect("names fit");
    prop_assert_eq!(keys.iter().collect::<HashSet<_>>().len(), pool.components.len());
    for (key, (name, shard)) in keys.iter().zip(&expected.components) {
        prop_assert_eq!(
            (key.namespace(), key.hash(), key.role()),
            (namespace, hash, expected.role)
        );
        prop_assert_eq!(
            (key.pool(), key.component(), key.shard()),
            (&*expected.name, &**name, *shard)
        );
    }
    Ok(())
}

/// (buffer, offset) of each byte of each (page, component), in order.
type Bytes = BTreeMap<(u64, usize), Vec<(usize, u64)>>;

fn same_bytes(
    pool: &Pool,
    model_pool: &tensor_model::ModelPool,
    pages: u64,
) -> Result<(), TestCaseError> {
    let extents = Extents::new(pool, pages).expect("small");
    let mut expected = Bytes::new();
    for (i, buffer) in model_pool.buffers.iter().enumerate() {
        let elements = buffer.elements(pages);
        prop_assert_eq!(extents.buffer_bytes()[i], elements.len() as u64 * buffer.bytes_each);
        for element in elements {
            let bytes = expected.entry((element.place.page, element.component)).or_default();
            bytes.extend((0..buffer.bytes_each).map(|byte| (i, element.offset + byte)));
        }
    }
    let mut found = Bytes::new();
    let mut seen = HashSet::new();
    for page in 0..pages {
        for component in 0..pool.components.len() {
            let chunks: Vec<Chunk> = extents.chunks(page, component).expect("in range").collect();
            prop_assert_eq!(chunks.len() as u64, extents.chunk_count(component));
            prop_assert_eq!(
                extents.chunks(page, component).expect("in range").size_hint().0,
                chunks.len()
            );
            prop_assert_eq!(
                chunks.iter().map(|c| c.len).sum::<u64>(),
                pool.components[component].bytes
            );
            pool.check_lengths(component, chunks.iter().map(|c| c.len)).expect("the sum is right");
            for pair in chunks.windows(2) {
                let touch = pair[0].buffer == pair[1].buffer
                    && pair[0].offset + pair[0].len == pair[1].offset;
                prop_assert!(!touch, "neighbours are one chunk: {:?}", pair);
            }
            let bytes: Vec<_> = chunks
                .iter()
                .flat_map(|c| (c.offset..c.offset + c.len).map(|at| (c.buffer, at)))
                .collect();
            for (buffer, at) in &bytes {
                prop_assert!(*at < extents.buffer_bytes()[*buffer], "inside the buffer");
                prop_assert!(seen.insert((*buffer, *at)), "no two components overlap");
            }
            found.insert((page, component), bytes);
        }
        let outside = extents.chunks(pages + page, 0).is_err();
        prop_assert!(outside || pool.components.is_empty());
    }
    let total: u64 = extents.buffer_bytes().iter().sum();
    prop_assert_eq!(seen.len() as u64, total, "every byte of every buffer belongs to a page");
    prop_assert_eq!(found, expected);
    Ok(())
}
