"""What checkpoints call their multi-token-prediction modules, and what those are made of, by the target's kind.

The names are those that vLLM reads (its files `*_mtp.py`) or that transformers drops. A module's parts are here called
as in transformers' MtpModel: `enorm` and `hnorm`, `eh_proj`, `mtp_block`, `post_norm`. Kinds whose modules
are made as DeepSeek V3's (GLM-4 MoE, also lite) are not here.
"""

from typing import Any, NamedTuple

QWEN = "mtp_num_hidden_layers"
NEXT = "num_nextn_predict_layers"  # DeepSeek's name for the number of modules
INDEXED = "indexed_attention"  # layers that attend to what an index chooses


class Dialect(NamedTuple):
    """How the modules of one kind of target differ from those of DeepSeek V3."""

    names: tuple[tuple[str, str], ...] = ()  # patterns of a checkpoint's names, and what takes their place
    layer: str = "full_attention"  # where the target's layers are of several types
    mlp: str = "sparse"
    fields: tuple[tuple[str, Any], ...] = ()  # of the modules' configuration
    modules: int = 0  # how many there are, if the configuration does not say


DIALECTS = {
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "olmo_hybrid"), Dialect(modules=1)),
    "exaone_moe": Dialect(mlp="dense", modules=1),
    **dict.fromkeys(("deepseek_v32", "glm_moe_dsa"), Dialect(layer=INDEXED)),
    "mimo_v2_flash": Dialect(
        names=((r"\.final_layernorm\.", ".post_norm."), (r"\.pre_mlp_layernorm\.", ".post_attention_layernorm.")),
        layer="sliding_attention",
        mlp="dense",
        modules=1,
    ),
    "ernie4_5_moe": Dialect(
        names=(
            (r"\.mtp_block\.(\d+)\.", r".layers.\1."),
            (r"\.mtp_emb_norm\.(\d+)\.", r".layers.\1.enorm."),
            (r"\.mtp_hidden_norm\.(\d+)\.", r".layers.\1.hnorm."),
            (r"\.mtp_linear_proj\.(\d+)\.", r".layers.\1.eh_proj."),
        ),
        fields=(("chain_hidden_post_norm", False),),  # no norm follows the layer
    ),
}

# Kinds whose modules are not of the target's layers, and why transformers' MtpModel cannot compute them.
OTHERS = {
    "nemotron_h": "its module is two layers, attention and experts",
    "nemotron_h_omni": "its module is two layers, attention and experts",
    "longcat_flash": "its module is a layer of another kind, with one attention and no experts",
    "longcat_flash_ngram": "its module is a layer of another kind, with one attention and no experts",
    "deepseek_v4": "its module reads several streams",
}
