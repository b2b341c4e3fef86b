"""The families `attention`, `attention-gradients`, `prefill` and `decode`.

Results are compared on some heads, and on some of their rows; gradients on all rows, since each depends on all others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from tilekit import kernels
from tilekit_benchmarks.drawn.distribution import CONTIGUOUS, Case, Draw
from tilekit_benchmarks.drawn.problem import Family, Operands, Problem, tolerance_of, width_of

__all__ = ["ATTENTION", "DECODE", "GRADIENTS", "PREFILL"]

_DTYPES = ("bfloat16", "float16")
_HEAD_SIZES = {64: 3.0, 128: 3.0, 256: 1.0, 96: 1.0, 80: 1.0, 32: 1.0}
_GROUPS = {1: 3.0, 2: 1.0, 4: 1.0, 8: 1.0}  # heads for each head of keys
_KEY_HEADS, _BATCHES, _DECODED_BATCHES = 32, 64, 256
_OTHER_LENGTH = 0.25  # of the cases without a mask queries are as many as they like
_LAYOUTS = ("BHLD", "BLHD")  # both contiguous; the second permuted to the first
_ROWS, _HEADS, _CHUNK = 64, 4, 1024
_OF_GRADIENTS = 3  # times the tolerance: weights and their gradients are rounded, too


def _draw(kernel: str, d: Draw) -> Case:
    decode, prefill, backward = kernel == "decode", kernel == "prefill", kernel == "gradients"
    dtype, layout = d.one_of(_DTYPES), d.one_of(_LAYOUTS)
    causal = decode or prefill or d.chance(0.5)
    of_other_length = prefill or (not causal and d.chance(_OTHER_LENGTH))

    def once() -> dict[str, Any] | None:
        batch = d.count(1, _DECODED_BATCHES if decode else _BATCHES)
        key_heads, group, size = d.count(1, _KEY_HEADS), d.one_of(_GROUPS), d.one_of(_HEAD_SIZES)
        length = d.size(*d.limits.length)
        queries = length
        if decode:
            queries = d.one_of({1: 6.0, 2: 1.0, 4: 1.0})
        elif of_other_length:
            queries = d.size(d.limits.length[0], length if prefill else d.limits.length[1])
        heads = key_heads * group
        operands, keys = batch * heads * queries * size, batch * key_heads * length * size
        nbytes = (2 if backward else 1) * width_of(dtype) * 2 * (operands + keys)
        # A causal mask leaves the keys up to each query's own place, and the last query stands at the last key.
        seen = queries * length - queries * (queries - 1) // 2 if causal else queries * length
        operations = 4 * batch * heads * seen * size
        operations = 5 * operations // 2 if backward else operations
        if not d.within(nbytes) or operations > d.limits.operations:
            return None
        shape = (batch, heads, queries, size)
        return {"shape": shape, "nbytes": nbytes, "operations": operations, "key_heads": key_heads, "keys": length}

    fields = d.fitting(once)
    return d.case(kernel=kernel, dtype=dtype, layout=layout, causal=causal, **fields)


def _operand(t: Operands, case: Case, *shape: int) -> Any:
    """A tensor of shape (B, H, L, D)."""
    if case.layout == "BHLD":
        return t.normal(*shape, layout=CONTIGUOUS)
    batch, heads, length, size = shape
    return t.normal(batch, length, heads, size, layout=CONTIGUOUS).transpose(1, 2)


class _Attended:
    """The operands of a case, and PyTorch's ways to attend.

    Attributes:
        q, k, v: of shape (B, H, L, D).
    """

    def __init__(self, case: Case, t: Operands) -> None:
        self.torch, self._cuda = t.torch, t.device.type == "cuda"
        batch, _, self.queries, size = case.shape
        self.keys, key_heads, self.causal = (case.options[name] for name in ("keys", "key_heads", "causal"))
        self.q = _operand(t, case, *case.shape)
        self.k, self.v = (_operand(t, case, batch, key_heads, self.keys, size) for _ in range(2))
        self.scale = size**-0.5
        self._options: dict[str, Any] = {"enable_gqa": case.shape[1] != key_heads}
        if self.causal and self.queries == self.keys:
            self._options["is_causal"] = True
        elif self.causal and self.queries > 1:
            self._options["attn_mask"] = self.seen(self.torch.arange(self.queries, device=t.device))

    def seen(self, places: Any) -> Any:
        """Which keys queries at these places see, as a matrix of booleans; True for all."""
        torch = self.torch
        if not self.causal:
            return torch.ones((), dtype=torch.bool, device=self.q.device)
        return torch.arange(self.keys, device=self.q.device) <= places[:, None] + (self.keys - self.queries)

    def sdpa(self, q: Any, k: Any, v: Any, backend: str | None = None) -> Any:
        """scaled_dot_product_attention, by a backend, or by that which PyTorch chooses."""
        attend = self.torch.nn.functional.scaled_dot_product_attention
        if backend is None:
            return attend(q, k, v, **self._options)
        from torch.nn.attention import SDPBackend, sdpa_kernel

        with sdpa_kernel(getattr(SDPBackend, backend)):
            return attend(q, k, v, **self._options)

    def flash(self) -> tuple[Any, ...]:
        """FlashAttention-2, whose causal mask ends at the last key, too: the result, and what its gradients need."""
        q, k, v = (x.transpose(1, 2) for x in (self.q, self.k, self.v))
        forward = self.torch.ops.aten._flash_attention_forward
        result, *rest = forward(q, k, v, None, None, self.queries, self.keys, 0.0, self.causal, False)
        return result.transpose(1, 2), *rest

    def flash_backward(self, grad: Any) -> Callable[[], Any]:
        """Its gradients; the forward pass runs before."""
        q, k, v, of_result = (x.transpose(1, 2) for x in (self.q, self.k, self.v, grad))
        result, lse, *state = self.flash()
        operands = of_result, q, k, v, result.transpose(1, 2), lse, None, None, self.queries, self.keys, 0.0, self.causal
        backward = self.torch.ops.aten._flash_attention_backward
        return lambda: tuple(x.transpose(1, 2) for x in backward(*operands, *state[:2]))

    def by_autograd(self, grad: Any, backend: str | None = None) -> Callable[[], Any]:
        """The gradients of `sdpa`; the forward pass runs before."""
        leaves = [x.detach().requires_grad_() for x in (self.q, self.k, self.v)]  # as they lie
        result = self.sdpa(leaves[0], leaves[1], leaves[2], backend)
        return lambda: self.torch.autograd.grad(result, leaves, grad, retain_graph=True)

    def peers(self) -> Mapping[str, Callable[[], Any]]:
        """All that attend."""
        peers: dict[str, Callable[[], Any]] = {"torch": lambda: self.sdpa(self.q, self.k, self.v)}
        if self._cuda:
            peers["flash-attention-2"] = lambda: self.flash()[0]
            if self.queries > 1 and "attn_mask" not in self._options:  # PyTorch does not give it others
                peers["cudnn"] = lambda: self.sdpa(self.q, self.k, self.v, "CUDNN_ATTENTION")
        return peers

    def of_backward(self, grad: Any) -> Mapping[str, Callable[[], Any]]:
        """All that give gradients."""
        peers = {"torch": _once(lambda: self.by_autograd(grad))}
        if self._cuda:
            peers["flash-attention-2"] = _once(lambda: self.flash_backward(grad))
            peers["cudnn"] = _once(lambda: self.by_autograd(grad, "CUDNN_ATTENTION"))
        return peers

    def weights(self, b: int, h: int, places: Any) -> Any:
        """The weights of some rows of a head, in float64."""
        keys = self.k[b, h * self.k.shape[1] // self.q.shape[1]].double()
        scores = self.q[b, h][places].double() @ keys.T * self.scale
        return scores.masked_fill(~self.seen(places), -math.inf).softmax(-1)


def _once(build: Callable[[], Callable[[], Any]]) -> Callable[[], Any]:
    """A function that is built when it is called first: what fails there is the peer's failure, not the case's."""
    built: list[Callable[[], Any]] = []

    def launch() -> Any:
        if not built:
            built.append(build())
        return built[0]()

    return launch


def _some(count: int, among: int) -> list[int]:
    """So many numbers, evenly spaced, the first and the last included."""
    chosen = min(count, among)
    return sorted({at * (among - 1) // max(1, chosen - 1) for at in range(chosen)})


def _heads(shape: tuple[int, ...]) -> list[tuple[int, int]]:
    return [divmod(at, shape[1]) for at in _some(_HEADS, shape[0] * shape[1])]


def _problem(case: Case, t: Operands) -> Problem:
    of, torch = _Attended(case, t), t.torch
    places = torch.tensor(_some(_ROWS, of.queries), device=t.device)
    heads, group = _heads(case.shape), case.shape[1] // case.options["key_heads"]
    own = kernels.attention_decode if case.kernel == "decode" else kernels.attention
    options: dict[str, Any] = {"out": t.empty(*case.shape)}
    if case.kernel != "decode":
        options["causal"] = of.causal

    def right() -> Any:
        return torch.stack([of.weights(b, h, places) @ of.v[b, h // group].double() for b, h in heads])

    return Problem(
        own=lambda: own(of.q, of.k, of.v, **options),
        peers=of.peers(),
        reference=right,
        part=lambda results: (torch.stack([results[0][b, h][places] for b, h in heads]),),
        tolerance=tolerance_of(case.dtype),
        triton=_triton(case, t, of),
    )


def _triton(case: Case, t: Operands, of: _Attended) -> tuple[str, Mapping[str, Any], Any] | None:
    """The tutorial's kernel takes as many queries and heads as keys, and heads of a power of two."""
    alike = of.q.shape == of.k.shape and case.layout == "BHLD" and case.kernel == "attention"
    if not alike or case.shape[3] & (case.shape[3] - 1):
        return None
    name = "causal attention" if of.causal else "attention"
    return name, {"x": of.q, "key": of.k, "value": of.v}, t.empty(*case.shape)


def _problem_gradients(case: Case, t: Operands) -> Problem:
    """The gradients of the rounded result that they are given, measured by rows.

    `sum(grad * o)` has the error of the result's rounding, whoever computes it. Where queries see few keys this is most of the
    error; and rows of those queries and keys are many times larger than others, as what is lost there is. By the result before
    it was rounded, and all rows alike, 17104 rows of float16 with a causal mask would be off by 0.016 in right arithmetic.
    """
    of, torch = _Attended(case, t), t.torch
    grad = _operand(t, case, *case.shape)
    key_heads, group = case.options["key_heads"], case.shape[1] // case.options["key_heads"]
    result, lse = (torch.from_dlpack(x) for x in kernels.attention(of.q, of.k, of.v, causal=of.causal, return_lse=True).sync())
    heads = _heads((case.shape[0], key_heads))[:: _HEADS - 1]

    def right() -> Any:
        wanted: list[list[Any]] = [[], [], []]
        for b, key_head in heads:
            keys, values = of.k[b, key_head].double(), of.v[b, key_head].double()
            by_keys, by_values = torch.zeros_like(keys), torch.zeros_like(values)
            for h in range(key_head * group, (key_head + 1) * group):
                by_queries = []
                for low in range(0, of.queries, _CHUNK):
                    places = torch.arange(low, min(of.queries, low + _CHUNK), device=t.device)
                    p, g = of.weights(b, h, places), grad[b, h][places].double()
                    ds = p * (g @ values.T - (g * result[b, h][places].double()).sum(-1, keepdim=True)) * of.scale
                    by_queries.append(ds @ keys)
                    by_keys += ds.T @ of.q[b, h][places].double()
                    by_values += p.T @ g
                wanted[0].append(torch.cat(by_queries))
            wanted[1].append(by_keys)
            wanted[2].append(by_values)
        return tuple(map(torch.stack, wanted))

    def part(results: tuple[Any, ...]) -> tuple[Any, ...]:
        dq, dk, dv = results
        every = [(b, h) for b, key_head in heads for h in range(key_head * group, (key_head + 1) * group)]
        return torch.stack([dq[at] for at in every]), *(torch.stack([x[at] for at in heads]) for x in (dk, dv))

    return Problem(
        own=lambda: kernels.attention_backward(grad, of.q, of.k, of.v, result, lse, causal=of.causal),
        peers=of.of_backward(grad),
        reference=right,
        part=part,
        tolerance=_OF_GRADIENTS * tolerance_of(case.dtype),
        by_rows=True,
    )


def _family(kernel: str, summary: str, problem: Callable[[Case, Operands], Problem] = _problem) -> Family:
    return Family(summary=summary, draw=lambda d: _draw(kernel, d), problem=problem)


ATTENTION = _family("attention", "attention of sequences to themselves and to others, with a causal mask and without")
GRADIENTS = _family("gradients", "the gradients of attention", _problem_gradients)
PREFILL = _family("prefill", "attention of the last queries of a sequence, many of them, to all keys before them")
DECODE = _family("decode", "attention of the last few queries of a sequence to all keys before them")
"""See the module."""
