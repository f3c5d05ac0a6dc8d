"""The structs of llama.h, as laid out in the releases that are known, and the check that a library has one of them.

llama.cpp passes its parameters by value and moves their fields from release to release without a version to ask for. A
shifted field would not fail but change what is computed. So the default values that the library itself fills in are
compared, all of them: a field that moved puts a known value in a wrong place.
"""

from __future__ import annotations

import ctypes as c
from typing import Any

_PADDING = c.c_uint8 * 64  # a later release may fill in more than is known here


class ModelParams(c.Structure):
    """llama_model_params."""

    _fields_ = [
        ("devices", c.c_void_p),
        ("tensor_buft_overrides", c.c_void_p),
        ("n_gpu_layers", c.c_int32),
        ("split_mode", c.c_int),
        ("load_mode", c.c_int),
        ("lazy_mode", c.c_int),
        ("main_gpu", c.c_int32),
        ("tensor_split", c.c_void_p),
        ("progress_callback", c.c_void_p),
        ("progress_callback_user_data", c.c_void_p),
        ("kv_overrides", c.c_void_p),
        ("vocab_only", c.c_bool),
        ("check_tensors", c.c_bool),
        ("use_extra_bufts", c.c_bool),
        ("no_host", c.c_bool),
        ("no_alloc", c.c_bool),
        ("load_mtp", c.c_bool),
        ("padding", _PADDING),
    ]


_CONTEXT_HEAD: list[tuple[str, Any]] = [
    ("n_ctx", c.c_uint32),
    ("n_batch", c.c_uint32),
    ("n_ubatch", c.c_uint32),
    ("n_seq_max", c.c_uint32),
    ("n_rs_seq", c.c_uint32),
    ("n_outputs_max", c.c_uint32),
    ("n_outputs_max_per_seq", c.c_uint32),
    ("n_threads", c.c_int32),
    ("n_threads_batch", c.c_int32),
    ("ctx_type", c.c_int),
    ("rope_scaling_type", c.c_int),
    ("pooling_type", c.c_int),
    ("attention_type", c.c_int),
    ("flash_attn_type", c.c_int),
    ("rope_freq_base", c.c_float),
    ("rope_freq_scale", c.c_float),
    ("yarn_ext_factor", c.c_float),
    ("yarn_attn_factor", c.c_float),
    ("yarn_beta_fast", c.c_float),
    ("yarn_beta_slow", c.c_float),
    ("yarn_orig_ctx", c.c_uint32),
    ("defrag_thold", c.c_float),
    ("cb_eval", c.c_void_p),
    ("cb_eval_user_data", c.c_void_p),
    ("type_k", c.c_int),
    ("type_v", c.c_int),
]
_CONTEXT_TAIL: list[tuple[str, Any]] = [
    ("abort_callback", c.c_void_p),
    ("abort_callback_data", c.c_void_p),
    ("embeddings", c.c_bool),
    ("offload_kqv", c.c_bool),
    ("no_perf", c.c_bool),
    ("op_offload", c.c_bool),
    ("swa_full", c.c_bool),
    ("kv_unified", c.c_bool),
    ("samplers", c.c_void_p),
    ("n_samplers", c.c_size_t),
    ("ctx_other", c.c_void_p),
    ("padding", _PADDING),
]


class ContextParams(c.Structure):
    """llama_context_params of the pinned release."""

    _fields_ = [*_CONTEXT_HEAD, ("moe_cache_size", c.c_size_t), *_CONTEXT_TAIL]


class EarlierContextParams(c.Structure):
    """llama_context_params of the summer of 2026, which an installed llama-cpp-python may bring."""

    _fields_ = [*_CONTEXT_HEAD, *_CONTEXT_TAIL]


class Batch(c.Structure):
    """llama_batch."""

    _fields_ = [
        ("n_tokens", c.c_int32),
        ("token", c.c_void_p),
        ("embd", c.c_void_p),
        ("pos", c.c_void_p),
        ("n_seq_id", c.c_void_p),
        ("seq_id", c.c_void_p),
        ("logits", c.c_void_p),
    ]


CONTEXT_LAYOUTS: tuple[type[ContextParams | EarlierContextParams], ...] = (ContextParams, EarlierContextParams)

_NOTHING_SET = dict.fromkeys(
    ("abort_callback", "abort_callback_data", "cb_eval", "cb_eval_user_data", "samplers", "ctx_other")
)
CONTEXT_DEFAULTS: dict[str, Any] = _NOTHING_SET | {
    "n_ctx": 512,
    "n_batch": 2048,
    "n_ubatch": 512,
    "n_seq_max": 1,
    "n_rs_seq": 0,
    "n_outputs_max": 0,
    "n_threads": 4,
    "n_threads_batch": 4,
    "ctx_type": 0,
    "rope_scaling_type": -1,
    "pooling_type": -1,
    "attention_type": -1,
    "flash_attn_type": -1,
    "rope_freq_base": 0.0,
    "rope_freq_scale": 0.0,
    "yarn_ext_factor": -1.0,
    "yarn_attn_factor": -1.0,
    "yarn_beta_fast": -1.0,
    "yarn_beta_slow": -1.0,
    "yarn_orig_ctx": 0,
    "defrag_thold": -1.0,
    "type_k": 1,
    "type_v": 1,
    "embeddings": False,
    "offload_kqv": True,
    "no_perf": True,
    "op_offload": True,
    "swa_full": True,
    "kv_unified": False,
    "n_samplers": 0,
}
MODEL_DEFAULTS: dict[str, Any] = {
    "devices": None,
    "tensor_buft_overrides": None,
    "n_gpu_layers": -1,
    "split_mode": 1,
    "load_mode": -1,
    "lazy_mode": 1,
    "main_gpu": 0,
    "tensor_split": None,
    "progress_callback": None,
    "progress_callback_user_data": None,
    "kv_overrides": None,
    "vocab_only": False,
    "check_tensors": False,
    "use_extra_bufts": True,
    "no_host": False,
    "no_alloc": False,
    "load_mtp": False,
}


def differing(params: c.Structure, expected: dict[str, Any]) -> list[str]:
    """The names of the fields whose value is not what every known release fills in."""
    return [name for name, value in expected.items() if getattr(params, name) != value]
