"""mnn-kv's attention of decodes for llama-cpp-python.

    import llama_cpp
    import mnnkv_llama

    mnnkv_llama.load()                                       # before the first Llama
    llm = llama_cpp.Llama(model_path="model.gguf", flash_attn=True)

flash_attn=True is needed: without flash attention llama.cpp has no node for the backend. The first step prints one line.
"""

import ctypes
import pathlib


class _Registry(ctypes.Structure):
    """The head of ggml_backend_reg."""

    _fields_ = [("api_version", ctypes.c_int)]


def load() -> str:
    """Loads the backend into the llama.cpp of the installed llama-cpp-python, and returns the path of its library.

    The backend stays until the process ends; another call does nothing. Raises RuntimeError, with the reason, where it does not
    fit: another version of ggml's backend API, a llama.cpp that is linked statically, or a CPU without AVX2 and NEON.
    """
    import llama_cpp

    libraries = pathlib.Path(llama_cpp.llama_cpp._lib._name).parent
    try:
        # Modules of Python are loaded apart from each other; the backend finds ggml's functions only among the global ones.
        ctypes.CDLL(str(libraries / "libggml-base.so"), mode=ctypes.RTLD_GLOBAL)
        ggml = ctypes.CDLL(str(libraries / "libggml.so"))
    except OSError as error:
        raise RuntimeError(f"mnnkv_llama: llama-cpp-python has no shared libraries of ggml: {error}") from error
    llama_cpp.llama_backend_init()  # registers the backends that ggml has
    ggml.ggml_backend_reg_count.restype = ctypes.c_size_t
    if ggml.ggml_backend_reg_count() == 0:
        raise RuntimeError("mnnkv_llama: ggml has no backend for the CPU")
    for name in ("ggml_backend_reg_by_name", "ggml_backend_reg_get", "ggml_backend_load"):
        getattr(ggml, name).restype = ctypes.POINTER(_Registry)
    ggml.ggml_backend_reg_by_name.argtypes = [ctypes.c_char_p]
    ggml.ggml_backend_reg_get.argtypes = [ctypes.c_size_t]
    ggml.ggml_backend_load.argtypes = [ctypes.c_char_p]

    version = ggml.ggml_backend_reg_get(0).contents.api_version  # that of ggml's own CPU backend
    path = pathlib.Path(__file__).parent / f"ggml-{version}" / "libggml-mnnkv.so"
    if not path.exists():
        has = ", ".join(sorted(folder.name for folder in path.parent.parent.glob("ggml-*")))
        raise RuntimeError(f"mnnkv_llama: this ggml has version {version} of the backend API; there is {has}")
    if not ggml.ggml_backend_reg_by_name(b"MNNKV") and not ggml.ggml_backend_load(str(path).encode()):
        raise RuntimeError(f"mnnkv_llama: ggml has refused {path}: its log has the reason")
    return str(path)
