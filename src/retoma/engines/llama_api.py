"""llama.cpp through ctypes: finds a library that exports llama.h, checks its layout, and gives its functions types.

The default is the extension module of `xllamacpp`, which exports the whole C API. That is nowhere promised, so the
package is pinned and the layout is checked. An installed `llama-cpp-python` or a path serve as well; nothing outside of
this file and `llama_layout.py` knows which one it is. To be loaded in an engine's process only: a wrong pointer or a
batch over its size ends the process.
"""

from __future__ import annotations

import ctypes as c
import importlib.util
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

from retoma.engines.llama_layout import (
    CONTEXT_DEFAULTS,
    CONTEXT_LAYOUTS,
    MODEL_DEFAULTS,
    Batch,
    ContextParams,
    EarlierContextParams,
    ModelParams,
    differing,
)
from retoma.errors import ModelUnavailable

PINNED = "xllamacpp==2026.10.11549"
ABORTED = 2
"""What `decode` returns when the abort callback ended it."""

_LOG_WARNING = 3
_LOG_CONTINUED = 5
_LogCallback = c.CFUNCTYPE(None, c.c_int, c.c_char_p, c.c_void_p)
_AbortCallback = c.CFUNCTYPE(c.c_bool, c.c_void_p)
_ProgressCallback = c.CFUNCTYPE(c.c_bool, c.c_float, c.c_void_p)

# Every function that is used, with its result and arguments; handles are plain pointers.
_P, _I, _F, _B, _S, _Z = c.c_void_p, c.c_int32, c.c_float, c.c_bool, c.c_char_p, c.c_size_t
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "llama_backend_init": (None,),
    "llama_free": (None, _P),
    "llama_model_free": (None, _P),
    "llama_model_get_vocab": (_P, _P),
    "llama_model_n_swa": (_I, _P),
    "llama_model_n_ctx_train": (_I, _P),
    "llama_model_chat_template": (_S, _P, _S),
    "llama_model_desc": (_I, _P, _P, _Z),
    "llama_vocab_n_tokens": (_I, _P),
    "llama_vocab_bos": (_I, _P),
    "llama_vocab_eos": (_I, _P),
    "llama_vocab_get_add_bos": (_B, _P),
    "llama_vocab_is_eog": (_B, _P, _I),
    "llama_vocab_is_control": (_B, _P, _I),
    "llama_tokenize": (_I, _P, _S, _I, _P, _I, _B, _B),
    "llama_token_to_piece": (_I, _P, _I, _P, _I, _I, _B),
    "llama_decode": (_I, _P, Batch),
    "llama_get_logits_ith": (_P, _P, _I),
    "llama_get_memory": (_P, _P),
    "llama_memory_seq_rm": (_B, _P, _I, _I, _I),
    "llama_state_seq_get_size": (_Z, _P, _I),
    "llama_state_seq_get_data": (_Z, _P, _P, _Z, _I),
    "llama_state_seq_set_data": (_Z, _P, _P, _Z, _I),
    "llama_set_n_threads": (None, _P, _I, _I),
    "llama_set_abort_callback": (None, _P, _AbortCallback, _P),
    "llama_print_system_info": (_S,),
    "llama_log_set": (None, _LogCallback, _P),
    "llama_model_default_params": (ModelParams,),
    "llama_model_load_from_file": (_P, _S, ModelParams),
}


def find_library(option: str) -> Path:
    """The library's file: `option` if given, else the packages' one; raises ModelUnavailable."""
    if option:
        if Path(option).is_file():
            return Path(option)
        raise ModelUnavailable(f"There is no llama.cpp library at {option}; correct the setting or leave it out.")
    for package, pattern in (("xllamacpp", "xllamacpp*.so"), ("llama_cpp", "lib/libllama.so")):
        found = importlib.util.find_spec(package)  # importing it would start its own server library
        if found is not None and found.origin is not None:
            files = sorted(Path(found.origin).parent.glob(pattern))
            if files:
                return files[0]
    raise ModelUnavailable("llama.cpp is not installed; install it with `pip install 'retoma[llama]'`.")


def _open(path: Path) -> c.CDLL:
    if path.name.startswith("xllamacpp") and platform.machine() == "x86_64" and not _has_avx2():
        raise ModelUnavailable(
            "This processor has no AVX2, which the packaged llama.cpp needs; "
            "install llama-cpp-python instead, which is compiled where it runs."
        )
    try:
        return c.CDLL(str(path))
    except OSError as error:
        if "libgomp" in str(error):
            raise ModelUnavailable(
                "llama.cpp needs the library libgomp1; install it with `apt install libgomp1`."
            ) from error
        raise ModelUnavailable(f"The llama.cpp library {path} can't be loaded: {error}.") from error


def _has_avx2() -> bool:
    try:
        return " avx2 " in Path("/proc/cpuinfo").read_text()
    except OSError:  # not Linux: nothing to go by, so let it try
        return True


class LlamaApi:
    """One loaded library; every method is the C function of that name unless it says more."""

    def __init__(self, option: str = "") -> None:
        """Loads and checks the library; raises ModelUnavailable."""
        self.path = find_library(option)
        self.last_error = ""
        """The last warning or error that llama.cpp logged."""
        self._library = _open(self.path)
        try:
            self._calls: dict[str, Any] = {name: self._typed(name, *types) for name, types in _FUNCTIONS.items()}
            self._context_params = self._find_context_layout()
        except AttributeError as error:
            raise self._foreign(f"a function is missing ({error})") from error
        if wrong := differing(self.model_params(), MODEL_DEFAULTS):
            raise self._foreign(f"llama_model_params differs in {', '.join(wrong)}")
        self._log = _LogCallback(self._hear)
        self._calls["llama_log_set"](self._log, None)
        self._calls["llama_backend_init"]()

    def _typed(self, name: str, result: Any, *arguments: Any) -> Any:
        function = getattr(self._library, name)
        function.restype, function.argtypes = result, list(arguments)
        return function

    def _find_context_layout(self) -> type[ContextParams | EarlierContextParams]:
        wrong: list[str] = []
        for layout in CONTEXT_LAYOUTS:
            defaults = self._typed("llama_context_default_params", layout)
            wrong = wrong or differing(defaults(), CONTEXT_DEFAULTS)
            if not differing(defaults(), CONTEXT_DEFAULTS):
                self._calls["llama_context_default_params"] = defaults
                self._calls["llama_init_from_model"] = self._typed("llama_init_from_model", _P, _P, layout)
                return layout
        raise self._foreign(f"llama_context_params differs in {', '.join(wrong)}")

    def _foreign(self, what: str) -> ModelUnavailable:
        return ModelUnavailable(
            f"The llama.cpp library {self.path} is of a release that Retoma does not know: {what}; install {PINNED}."
        )

    def _hear(self, level: int, text: bytes | None, _: object) -> None:
        if _LOG_WARNING <= level < _LOG_CONTINUED and text:
            self.last_error = text.decode("utf-8", "replace").strip()

    def model_params(self) -> ModelParams:
        """llama_model_default_params."""
        return self._calls["llama_model_default_params"]()

    def context_params(self) -> ContextParams | EarlierContextParams:
        """llama_context_default_params."""
        return self._calls["llama_context_default_params"]()

    def system_info(self) -> str:
        """What the processor offers, and what the library was built with."""
        return self._calls["llama_print_system_info"]().decode()

    def load_model(self, path: Path, params: ModelParams, alive: Callable[[], None]) -> int | None:
        """llama_model_load_from_file; `alive` is called again and again. None: see `last_error`."""

        def progress(_share: float, _: object) -> bool:
            alive()
            return True

        callback = _ProgressCallback(progress)
        params.progress_callback = c.cast(callback, c.c_void_p)
        return self._calls["llama_model_load_from_file"](str(path).encode(), params)

    def init_context(self, model: int, params: ContextParams | EarlierContextParams) -> int | None:
        """llama_init_from_model; None: see `last_error`."""
        return self._calls["llama_init_from_model"](model, params)

    def on_abort(self, context: int, aborted: Callable[[], bool]) -> object:
        """Sets the abort callback, which is asked many times in every decode; what it returns must be kept alive."""

        def abort(_: object) -> bool:
            return aborted()

        callback = _AbortCallback(abort)
        self._calls["llama_set_abort_callback"](context, callback, None)
        return callback

    def free_context(self, context: int) -> None:
        """llama_free."""
        self._calls["llama_free"](context)

    def free_model(self, model: int) -> None:
        """llama_model_free."""
        self._calls["llama_model_free"](model)

    def vocabulary(self, model: int) -> int:
        """llama_model_get_vocab."""
        return self._calls["llama_model_get_vocab"](model)

    def window(self, model: int) -> int:
        """llama_model_n_swa: 0 for full attention."""
        return self._calls["llama_model_n_swa"](model)

    def trained_context(self, model: int) -> int:
        """llama_model_n_ctx_train."""
        return self._calls["llama_model_n_ctx_train"](model)

    def chat_template(self, model: int) -> str | None:
        """The model's own template, if it has one."""
        text = self._calls["llama_model_chat_template"](model, None)
        return None if text is None else text.decode("utf-8", "replace")

    def description(self, model: int) -> str:
        """Family, size and quantisation."""
        buffer = c.create_string_buffer(256)
        self._calls["llama_model_desc"](model, buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace")

    def vocabulary_size(self, vocabulary: int) -> int:
        """llama_vocab_n_tokens."""
        return self._calls["llama_vocab_n_tokens"](vocabulary)

    def first_token(self, vocabulary: int) -> int:
        """llama_vocab_bos; -1: there is none."""
        return self._calls["llama_vocab_bos"](vocabulary)

    def last_token(self, vocabulary: int) -> int:
        """llama_vocab_eos; -1: there is none."""
        return self._calls["llama_vocab_eos"](vocabulary)

    def adds_first_token(self, vocabulary: int) -> bool:
        """llama_vocab_get_add_bos."""
        return self._calls["llama_vocab_get_add_bos"](vocabulary)

    def is_end(self, vocabulary: int, token: int) -> bool:
        """llama_vocab_is_eog."""
        return self._calls["llama_vocab_is_eog"](vocabulary, token)

    def is_control(self, vocabulary: int, token: int) -> bool:
        """llama_vocab_is_control."""
        return self._calls["llama_vocab_is_control"](vocabulary, token)

    def tokenize(self, vocabulary: int, text: str, *, parse_special: bool) -> list[int]:
        """Without the first token that some models want before everything."""
        content = text.encode("utf-8", "replace")
        room = len(content) + 16
        buffer = (c.c_int32 * room)()
        count = self._calls["llama_tokenize"](vocabulary, content, len(content), buffer, room, False, parse_special)
        assert 0 <= count <= room, count
        return buffer[:count]

    def piece(self, vocabulary: int, token: int, *, special: bool = False) -> bytes:
        """The token's bytes; those of a control token only with `special`."""
        buffer = c.create_string_buffer(256)
        count = self._calls["llama_token_to_piece"](vocabulary, token, buffer, len(buffer), 0, special)
        if count < 0:  # the length it needs, negated
            buffer = c.create_string_buffer(-count)
            count = self._calls["llama_token_to_piece"](vocabulary, token, buffer, len(buffer), 0, special)
        return buffer.raw[:count]

    def decode(self, context: int, batch: Batch) -> int:
        """0: done; 1: no room; ABORTED; negative: an error."""
        return self._calls["llama_decode"](context, batch)

    def logits(self, context: int, index: int) -> int:
        """Address of the floats of the batch's entry `index`; valid until the next decode."""
        return self._calls["llama_get_logits_ith"](context, index)

    def remove(self, context: int, sequence: int) -> bool:
        """Forgets all of a sequence."""
        return self._calls["llama_memory_seq_rm"](self._calls["llama_get_memory"](context), sequence, -1, -1)

    def state_size(self, context: int, sequence: int) -> int:
        """llama_state_seq_get_size, bytes."""
        return self._calls["llama_state_seq_get_size"](context, sequence)

    def save_state(self, context: int, sequence: int) -> memoryview:
        """llama_state_seq_get_data."""
        size = self.state_size(context, sequence)
        buffer = (c.c_uint8 * size)()
        written = self._calls["llama_state_seq_get_data"](context, buffer, size, sequence)
        assert written == size, (written, size)
        return memoryview(buffer).cast("B")

    def restore_state(self, context: int, sequence: int, state: bytes | memoryview) -> bool:
        """llama_state_seq_set_data; the content must be proved before, llama.cpp does not look at it."""
        content = bytes(state)
        return self._calls["llama_state_seq_set_data"](context, content, len(content), sequence) == len(content)

    def set_threads(self, context: int, threads: int) -> None:
        """llama_set_n_threads, for single tokens and for batches."""
        self._calls["llama_set_n_threads"](context, threads, threads)
