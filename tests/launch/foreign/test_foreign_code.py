"""CUDA C++ and modules that somebody compiled: compiled or read without a GPU, and what is wrong with them."""

import struct
import sys

import pytest
from cuda_code import CODE, CONFIG, PTX, SAXPY, has_nvrtc, needs_nvrtc
from fake_gpu import fake_device

import tilekit as tk
from tilekit import api
from tilekit.compiler.foreign import image


@pytest.fixture
def gpu():
    """A GPU that does nothing, the default device; gives it and its driver's stand-in."""
    with fake_device(slots=4) as made:
        yield made


@pytest.fixture
def cubin():
    """A module as a file would have it, for the stand-in's architecture."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="compiles CUDA C++")
    if not has_nvrtc():
        pytest.skip("compiles CUDA C++, and NVRTC is not installed")
    return tk.cuda_source(CODE, "saxpy", SAXPY).compile("sm_90a").cubin


# CUDA C++


@needs_nvrtc
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_compiling_needs_no_gpu(target):
    made = tk.cuda_source(CODE, "saxpy", SAXPY).compile(target)
    assert (made.entry, made.target, made.parameters, made.local_bytes) == ("saxpy", target, (8, 4, 8, 4), 0)
    assert made.cubin.startswith(b"\x7fELF")
    assert 0 < made.registers < 64
    assert f".target {target}" in made.ptx


@needs_nvrtc
def test_templates_and_mangled_names():
    made = tk.cuda_source(CODE, "scale<double>", "InOut[f64], f64").compile("sm_80")
    assert (made.entry, made.parameters) == ("_Z5scaleIdEvPT_S0_", (8, 8))
    assert tk.cuda_source(CODE, "copy", "Out[f32], In[f32]").compile("sm_80").entry == "_Z4copyPfPKf"


@needs_nvrtc
def test_options_reach_the_compiler():
    code = (
        'extern "C" __global__ void k(int* y) { __shared__ int s[N]; s[threadIdx.x] = y[0]; __syncthreads(); y[1] = s[N - 1]; }'
    )
    assert tk.cuda_source(code, "k", "InOut[i32]", ["-DN=64"]).compile("sm_80").shared_bytes == 256
    assert tk.cuda_source(code, "k", "InOut[i32]", ("-DN=128",)).compile("sm_80").shared_bytes == 512
    with pytest.raises(tk.CompileError, match='(?s)CUDA kernel k does not compile for sm_80:\n.*identifier "N" is undefined'):
        tk.cuda_source(code, "k", "InOut[i32]").compile("sm_80")
    with pytest.raises(ValueError, match="option '-arch=sm_70': tilekit compiles for the architecture of the device"):
        tk.cuda_source(code, "k", "InOut[i32]", ["-arch=sm_70"])


@pytest.mark.parametrize("options", ["-DN=64", b"", b"-DN=64", bytearray(), None, 7, {"-DN=64"}, {}, iter(["-DN=64"]), [7], int])
def test_options_are_a_sequence_of_strings(options):
    with pytest.raises(TypeError, match="options is a sequence of strings"):
        tk.cuda_source(CODE, "saxpy", SAXPY, options)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [(("\ud800", "k", ""), "the source"), ((CODE, "\ud800", ""), "the name"), ((CODE, "k", "", ["\ud800"]), "an option")],
)
def test_what_is_no_text(arguments, what):
    with pytest.raises(ValueError, match=f"{what} is no text that UTF-8 has: .*surrogates"):
        tk.cuda_source(*arguments)


@needs_nvrtc
def test_a_source_with_an_error_is_shown_as_nvrtc_shows_it(gpu):
    kernel = tk.cuda_source(CODE.replace("y[i] +=", "z[i] +="), "saxpy", SAXPY)[CONFIG]
    with pytest.raises(tk.CompileError) as caught:
        kernel(api.zeros(8), 1.0, api.zeros(8), 8).sync()
    assert str(caught.value).startswith('CUDA kernel saxpy does not compile for sm_90a:\nsaxpy.cu(4): error: identifier "z" is')
    assert "    if (i < n) z[i] += a * x[i];\n                 ^" in str(caught.value)
    assert "in CUDA kernel saxpy(zeros, zeros), built at" in caught.value.__notes__[-1]


@needs_nvrtc
def test_a_kernel_that_the_source_does_not_have():
    with pytest.raises(ValueError, match="the source has no kernel saxpi; it has saxpy, scale, copy. A template"):
        tk.cuda_source(CODE, "saxpi", SAXPY).compile("sm_80")
    with pytest.raises(ValueError, match="no kernel helper; it has saxpy"):
        tk.cuda_source(CODE, "helper", "f32").compile("sm_80")
    with pytest.raises(ValueError, match="it has none at all, no __global__ function"):
        tk.cuda_source("__device__ int f();", "f", "").compile("sm_80")


@needs_nvrtc
def test_a_signature_that_is_not_the_compiled_kernels(gpu):
    wrong = r"declares parameters of \[8, 8, 8, 4\] bytes, the compiled kernel has \[8, 4, 8, 4\]"
    with pytest.raises(TypeError, match=rf"saxpy: the signature \(InOut\[f32\], f64, In\[f32\], i32\) {wrong}"):
        tk.cuda_source(CODE, "saxpy", "InOut[f32], f64, In[f32], i32").compile("sm_80")
    with pytest.raises(TypeError, match=r"of \[8\] bytes, the compiled kernel has \[8, 4, 8, 4\]"):
        tk.cuda_source(CODE, "saxpy", "InOut[f32]")[CONFIG](api.zeros(8)).sync()
    assert gpu[1].launches == []


def test_compiling_for_nothing(monkeypatch):
    kernel = tk.cuda_source(CODE, "saxpy", SAXPY)
    with pytest.raises(ValueError, match="target 'sm90' is no architecture, such as 'sm_80' or 'sm_90a'"):
        kernel.compile("sm90")
    with (
        tk.use_device("cpu"),
        pytest.raises(ValueError, match=r"no GPU to compile for; name a target, such as .compile\('sm_90a'\)"),
    ):
        kernel.compile()
    with pytest.raises(TypeError, match="takes a source text and the name of a kernel in it"):
        tk.cuda_source(CODE.encode(), "saxpy", SAXPY)


def test_without_nvrtc(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvrtc", None)
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(
        tk.TilekitError, match=r"compiled by NVRTC, which is not installed here: pip install \"numba-cuda\[cu13\]\""
    ):
        tk.cuda_source("", "nothing_else_has_this_name", "").compile("sm_80")


# modules


def test_a_cubin(gpu, cubin, tmp_path):
    file = tmp_path / "kernels.cubin"
    file.write_bytes(cubin)
    for given in (file, str(file), cubin, bytearray(cubin)):
        module = tk.load_module(given)
        assert (module.kind, set(module.names)) == ("cubin", {"saxpy", "_Z4copyPfPKf"})
    kernel = tk.load_module(file).kernel("saxpy", SAXPY)
    assert kernel.label == f"kernel saxpy of {file}"
    y, x = api.zeros(8).sync(), api.zeros(8).sync()
    kernel[CONFIG](y, 2.0, x, 8).sync()
    assert gpu[1].launches[-1][-1] == struct.pack("<QfxxxxQixxxx", y.address, 2.0, x.address, 8)
    assert kernel.compile("sm_90a").parameters == (8, 4, 8, 4)
    with pytest.raises(ValueError, match="kernels.cubin is a cubin for sm_90: it cannot be compiled for sm_80"):
        kernel.compile("sm_80")
    with pytest.raises(TypeError, match=r"the signature \(\) declares parameters of \[\] bytes"):
        tk.load_module(file).kernel("saxpy", "")[CONFIG]().sync()


def test_ptx_is_assembled_for_the_gpu(gpu):
    nvjitlink = pytest.importorskip("cuda.bindings.nvjitlink", reason="assembles PTX")
    try:
        nvjitlink.version()
    except RuntimeError:
        pytest.skip("assembles PTX, and nvJitLink is not installed")
    module = tk.load_module(PTX.encode() + b"\0")
    assert (module.kind, module.names) == ("PTX", ("fill", "_Z4other1Pf"))
    kernel = module.kernel("fill", "y: Out[f32], f32")
    for target in ("sm_80", "sm_90a"):
        made = kernel.compile(target)
        assert (made.entry, made.parameters, made.cubin[:4]) == ("fill", (8, 4), b"\x7fELF")
    images = []
    gpu[1].cuLibraryLoadData = lambda image, *rest: images.append(image) or (0, 1)
    gpu[1].slots = 2
    kernel[CONFIG](api.zeros(8), 1.0).sync()
    assert images[0][:4] == b"\x7fELF"
    with pytest.raises(
        tk.CompileError, match="(?s)the module cannot be assembled for sm_80:\n.*Unsupported .version 99.0.*newer toolkit"
    ):
        tk.load_module(PTX.replace("7.0", "99.0").encode()).kernel("fill", "Out[f32], f32").compile("sm_80")
    with pytest.raises(tk.CompileError, match="(?s)the module cannot be assembled for sm_80:\n.*ptxas"):
        tk.load_module(PTX.replace("ret;", "bogus;").encode()).kernel("fill", "Out[f32], f32").compile("sm_80")
    with pytest.raises(TypeError, match=r"declares parameters of \[8\] bytes, the compiled kernel has \[8, 4\]"):
        module.kernel("fill", "Out[f32]").compile("sm_80")
    for target in ("sm_10", "sm_999"):
        with pytest.raises(tk.CompileError, match=f"the module cannot be assembled: nvJitLink .* knows no {target}"):
            kernel.compile(target)


def failing(bindings, function, code, name):
    setattr(bindings, function, lambda *_: (code, 0))
    bindings.cuGetErrorName = lambda _: (0, name)


def test_ptx_without_nvjitlink_is_the_drivers(gpu, monkeypatch):
    monkeypatch.setattr(image, "assemble", lambda *_: None)
    kernel = tk.load_module(PTX.encode()).kernel("fill", "Out[f32], f32")
    images = []
    gpu[1].slots, gpu[1].cuLibraryLoadData = 2, lambda image, *rest: images.append(image) or (0, 1)
    kernel[CONFIG](api.zeros(8), 1.0).sync()
    assert images == [PTX.encode() + b"\0"]
    with pytest.raises(ValueError, match="is PTX, and nvJitLink is not installed: there is no cubin of it to look at"):
        kernel.compile("sm_80")
    failing(gpu[1], "cuLibraryLoadData", 222, b"CUDA_ERROR_UNSUPPORTED_PTX_VERSION")
    with pytest.raises(
        tk.DeviceError, match="kernel fill of the module cannot be loaded on cuda:0 .fake GPU, sm_90a.: .*newer toolkit"
    ) as e:
        tk.load_module(PTX.encode()).kernel("fill", "Out[f32], f32")[CONFIG](api.zeros(8), 1.0).sync()
    assert e.value.code == "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"


def test_an_image_for_another_gpu(gpu, cubin):
    kernel = tk.load_module(cubin).kernel("saxpy", SAXPY)[CONFIG]
    failing(gpu[1], "cuLibraryLoadData", 209, b"CUDA_ERROR_NO_BINARY_FOR_GPU")
    with pytest.raises(tk.DeviceError, match="CUDA_ERROR_NO_BINARY_FOR_GPU: .*compiled for another architecture"):
        kernel(api.zeros(8), 1.0, api.zeros(8), 8).sync()


def test_the_driver_names_the_kernels_of_a_fatbin(gpu):
    module = tk.load_module(b"\x50\xed\x55\xba" + bytes(60))
    assert (module.kind, module.names) == ("fatbin", None)
    kernel = module.kernel("fill", "Out[f32], f32")
    bindings = gpu[1]
    bindings.slots = 2
    kernel[CONFIG](api.zeros(8), 1.0).sync()
    assert len(bindings.launches) == 1
    with pytest.raises(ValueError, match="the module is a fatbin, from which the driver chooses"):
        kernel.compile("sm_80")
    failing(bindings, "cuLibraryGetKernel", 500, b"CUDA_ERROR_NOT_FOUND")
    bindings.cuLibraryGetKernelCount = lambda library: (0, 2)
    bindings.cuLibraryEnumerateKernels = lambda count, library: (0, [1, 2][:count])
    bindings.cuKernelGetName = lambda kernel: (0, [b"one", b"two"][kernel - 1])
    with pytest.raises(ValueError, match="kernel filll of the module: there is no kernel 'filll' in it; it has one, two"):
        module.kernel("filll", "Out[f32], f32")[CONFIG](api.zeros(8), 1.0).sync()
    assert bindings.calls["cuLibraryUnload"] == 1


def test_a_kernel_that_the_module_does_not_have():
    module = tk.load_module(PTX.encode())
    with pytest.raises(ValueError, match="the module has no kernel 'filll'; it has fill, _Z4other1Pf$"):
        module.kernel("filll", "")
    ptx = PTX.replace("_Z4other1Pf", "_Z5otherPf").encode()
    with pytest.raises(
        ValueError, match="has no kernel 'other'; .* C\\+\\+ calls it _Z5otherPf there: give that name, or declare"
    ):
        tk.load_module(ptx).kernel("other", "")
    with pytest.raises(ValueError, match="it has no kernels at all"):
        tk.load_module(b".version 7.0\n.target sm_80\n").kernel("fill", "")
    for name in (None, 7, b"fill", ("fill",)):
        with pytest.raises(TypeError, match="the name of a kernel of the module is a str, not"):
            module.kernel(name, "")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty; tk.load_module takes PTX, a cubin or a fatbin"),
        (b"PK\x03\x04rest", "is a ZIP archive; tk.load_module takes"),
        (b"\xed\x43\x4e\x7frest", "is NVVM's intermediate code for linking"),
        (b"\x00\xff\xfe\x01rest", "is no module: it begins with the bytes 00 ff fe 01 72 65 73 74"),
        (b"hello\nworld", "is no module: it is text that begins with 'hello', without PTX's .version"),
        (CODE.encode(), "is no module: .*CUDA C\\+\\+ is compiled by tk.cuda_source"),
    ],
)
def test_a_file_that_is_no_module(tmp_path, data, message):
    file = tmp_path / "thing.cubin"
    file.write_bytes(data)
    with pytest.raises(ValueError, match=f"thing.cubin {message}"):
        tk.load_module(file)


@pytest.mark.parametrize(
    ("path", "error", "message"),
    [
        (None, TypeError, "tk.load_module takes the path of a module, or its bytes, not None"),
        (7, TypeError, "tk.load_module takes the path of a module, or its bytes, not 7"),
        ("", IsADirectoryError, "tk.load_module: Is a directory: '.'"),
        ("a" * 300, OSError, "tk.load_module: File name too long"),
        ("a\0b", ValueError, "tk.load_module: .* is no path of a file"),
        ("\ud800", ValueError, "tk.load_module: .* is no path of a file"),
    ],
)
def test_what_is_no_path(path, error, message):
    with pytest.raises(error, match=message):
        tk.load_module(path)


def test_files_that_are_others_programs_or_not_there(tmp_path, cubin):
    with pytest.raises(FileNotFoundError, match=r"tk.load_module: there is no such file: .*none\.ptx"):
        tk.load_module(tmp_path / "none.ptx")
    with pytest.raises(ValueError, match="takes a path or bytes; this looks like the text of a module"):
        tk.load_module(PTX)
    with pytest.raises(ValueError, match="begins as a cubin, but is damaged"):
        tk.load_module(cubin[: len(cubin) // 2])
    host = b"\x7fELF\x02\x01\x01".ljust(18, b"\0") + (62).to_bytes(2, "little") + bytes(100)
    with pytest.raises(ValueError, match="the module is an ELF file for machine 62, a host's program, library or object file"):
        tk.load_module(host)


def test_cuda_code_needs_a_gpu():
    with tk.use_device("cpu"):
        y, x = api.zeros(8).sync(), api.zeros(8).sync()
        for kernel, who in [
            (tk.cuda_source(CODE, "saxpy", SAXPY), "CUDA kernel saxpy"),
            (tk.load_module(PTX.encode()).kernel("fill", SAXPY), "kernel fill of the module"),
        ]:
            op = kernel[CONFIG](y, 1.0, x, 8)
            with pytest.raises(tk.DeviceUnavailableError, match=f"{who} is CUDA code: it needs a GPU, and cpu:0 is none"):
                op.sync()
