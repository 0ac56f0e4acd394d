//! Model presets. Values come from the models' public configurations (`config.json` of the named
//! repository on the Hugging Face hub), for state as SGLang 0.5.23 stores it. A page has 64 tokens
//! unless the model fixes the size.

use super::error::GeometryError;
use super::model::{
    Attention, Draft, Dtype, HeadAttention, HitPolicy, Indexer, LatentAttention, LatentRow,
    LinearState, Model, RowPool, StateShape, Window,
};
use crate::key::Role;

/// Names of all models.
pub const NAMES: [&str; 9] = [
    "llama-3-8b",
    "llama-3-70b",
    "qwen3-8b",
    "qwen3-32b",
    "qwen3-235b",
    "deepseek-v3",
    "deepseek-v3.2",
    "qwen3-next",
    "gpt-oss-20b",
];

/// Names of all drafts that [`model`] accepts after a `+`: the draft layer of DeepSeek-V3 and V3.2
/// as a pool of its own, an EAGLE-3 layer of Llama-3-8B's shape, and one layer packed after the
/// target's.
pub const DRAFTS: [&str; 4] =
    ["deepseek-v3-mtp", "deepseek-v3.2-mtp", "llama-3-8b-eagle3", "packed-mtp"];

/// Tokens per page, unless the model fixes the size.
pub const PAGE_TOKENS: u32 = 64;

/// The preset `name`, either `TARGET` or `TARGET+DRAFT`, for example
/// `deepseek-v3.2+deepseek-v3.2-mtp`. For another page size, change the returned model.
pub fn model(name: &str) -> Result<Model, GeometryError> {
    let (target, draft) =
        name.split_once('+').map_or((name, None), |(target, draft)| (target, Some(draft)));
    let mut model = self::target(target).ok_or_else(|| unknown(name))?;
    model.name = name.into();
    match draft {
        None => {}
        Some("packed-mtp") => model.packed_mtp_layers = 1,
        Some(draft) => model.draft = Some(self::draft(draft).ok_or_else(|| unknown(name))?),
    }
    Ok(model)
}

fn unknown(name: &str) -> GeometryError {
    let known =
        format!("{}, optionally followed by + and one of {}", NAMES.join(", "), DRAFTS.join(", "));
    GeometryError::UnknownPreset { name: name.into(), known }
}

fn target(name: &str) -> Option<Model> {
    Some(match name {
        // meta-llama/Meta-Llama-3-8B and -70B.
        "llama-3-8b" => of(heads(32, 8, 128)),
        "llama-3-70b" => of(heads(80, 8, 128)),
        // Qwen/Qwen3-8B, -32B and -235B-A22B.
        "qwen3-8b" => of(heads(36, 8, 128)),
        "qwen3-32b" => of(heads(64, 8, 128)),
        "qwen3-235b" => of(heads(94, 4, 128)),
        // deepseek-ai/DeepSeek-V3, bf16 rows.
        "deepseek-v3" => of(latent(61, WIDE_ROW)),
        // deepseek-ai/DeepSeek-V3.2, fp8 rows.
        "deepseek-v3.2" => Model { indexer: Some(INDEXER), ..of(latent(61, FP8_ROW)) },
        // Qwen/Qwen3-Next-80B-A3B: every fourth of its 48 layers has full attention.
        "qwen3-next" => Model { linear: Some(gated_delta()), ..of(heads(12, 2, 256)) },
        // openai/gpt-oss-20b: every second of its 24 layers has a window.
        "gpt-oss-20b" => Model {
            window: Some(Window { attention: heads(12, 8, 64), tokens: 128 }),
            ..of(heads(12, 8, 64))
        },
        _ => return None,
    })
}

fn draft(name: &str) -> Option<Draft> {
    Some(match name {
        "deepseek-v3-mtp" => Draft { attention: latent(1, WIDE_ROW), indexer: None, window: None },
        "deepseek-v3.2-mtp" => {
            Draft { attention: latent(1, FP8_ROW), indexer: Some(INDEXER), window: None }
        }
        // yuhuili/EAGLE3-LLaMA3.1-Instruct-8B: one layer of the target's shape.
        "llama-3-8b-eagle3" => Draft { attention: heads(1, 8, 128), indexer: None, window: None },
        _ => return None,
    })
}

/// 512 low-rank and 64 rotary elements in bf16.
const WIDE_ROW: LatentRow = LatentRow::Parts { lora_rank: 512, rope_dim: 64, dtype: Dtype::Half };

/// 512 fp8 values, 4 fp32 scales, 64 bf16 rotary elements: 512 + 16 + 128 bytes.
const FP8_ROW: LatentRow = LatentRow::Packed { bytes: 656 };

/// A 128-wide fp8 key and its fp32 scale.
const INDEXER: Indexer = Indexer { layers: None, key_bytes: 128, scale_bytes: 4 };

fn of(attention: Attention) -> Model {
    Model {
        name: String::new(),
        page_tokens: PAGE_TOKENS,
        attention,
        packed_mtp_layers: 0,
        indexer: None,
        linear: None,
        window: None,
        draft: None,
        rows: Vec::new(),
    }
}

fn heads(layers: u32, kv_heads: u32, dim: u32) -> Attention {
    Attention::Heads(HeadAttention { layers, kv_heads, k_dim: dim, v_dim: dim, dtype: Dtype::Half })
}

fn latent(layers: u32, row: LatentRow) -> Attention {
    Attention::Latent(LatentAttention { layers, row })
}

/// 32 value heads of 128 x 128 in fp32, and 3 steps of 8192 channels (query, key and value) in
/// bf16.
fn gated_delta() -> LinearState {
    LinearState {
        layers: 36,
        temporal: StateShape { dims: vec![32, 128, 128], dtype: Dtype::Single },
        conv: vec![StateShape { dims: vec![8192, 3], dtype: Dtype::Half }],
    }
}

/// Layer counts of a DeepSeek-V4 model by kind of state; configurations differ in these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeepSeekV4Layers {
    /// All layers: each has a window.
    pub window: u32,
    /// Layers with one row per 4 tokens and an indexer.
    pub c4: u32,
    /// Layers with one row per 128 tokens.
    pub c128: u32,
}

/// DeepSeek-V4's pools of fixed size: a logical `kv`, the window, the compressed rows and the C4
/// indexer (fp8: 132 bytes per compressed row). Pages have 256 tokens, rows have 584 bytes, and a
/// layer's page is padded to a multiple of 576. Callers add pools that depend on server flags
/// (separate scales and ropes, C1 and C2, states) to `rows`.
pub fn deepseek_v4(layers: DeepSeekV4Layers, window_tokens: u32) -> Model {
    const TOKENS: u32 = 256;
    let pool = |name: &str, layers, every: u32, row_bytes, page_multiple| RowPool {
        role: Role::Target,
        name: name.into(),
        layers,
        rows: TOKENS / every,
        row_bytes,
        page_multiple,
        hit: HitPolicy::AllPages,
        per_rank: false,
    };
    let window = RowPool {
        hit: HitPolicy::TrailingPages(window_tokens.div_ceil(TOKENS)),
        ..pool("swa", layers.window, 1, 584, 576)
    };
    let compressed = [
        pool("deepseek_v4_c4", layers.c4, 4, 584, 576),
        pool("deepseek_v4_c4_indexer", layers.c4, 4, 132, 1),
        pool("deepseek_v4_c128", layers.c128, 128, 584, 576),
    ];
    Model {
        name: "deepseek-v4".into(),
        page_tokens: TOKENS,
        rows: [window].into_iter().chain(compressed).collect(),
        ..of(Attention::Anchor)
    }
}
