//! A text is refused or formats back to itself; 128 bytes are refused or are a key with a text.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagelith_layouts::ids::NamespaceId;
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::shard::Shard;

fuzz_target!(|data: &[u8]| {
    if let Ok(text) = std::str::from_utf8(data) {
        if let Ok(key) = text.parse::<ObjectKey>() {
            assert_eq!(key.to_string(), text);
            assert_eq!(ObjectKey::decode(key.as_bytes()), Ok(key));
        }
        if let Some(shard) = Shard::parse(text) {
            assert_eq!(shard.to_string(), text);
        }
        if let Some(id) = NamespaceId::from_hex(text) {
            assert_eq!(id.to_string(), text);
        }
    }
    if let Some(bytes) = data.first_chunk::<{ ObjectKey::BYTES }>() {
        if let Ok(key) = ObjectKey::decode(bytes) {
            assert_eq!(key.as_bytes(), bytes);
            assert_eq!(key.to_string().parse(), Ok(key));
        }
    }
});
