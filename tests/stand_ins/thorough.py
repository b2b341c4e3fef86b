"""Which tests run without `--thorough`: of a family (a parametrised test) some members, and nothing that is marked `thorough`.

On a machine without a GPU, `MOST` members of a family stay, from the first to the last, evenly. A family that is named here is
given with what stays of it instead, wherever it runs: a number, or the pattern of the ids that stay. `None` is the whole test.
What is named takes long and has seldom found what no other test finds: the same property of a kernel for more dtypes, shapes and
GPUs. Each property keeps a member or two.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable

import pytest
import seeds

__all__ = ["HEADER", "MOST", "is_asked_for", "leave_out", "names_files", "stays", "unknown"]

HEADER = "the quick run: about 10 minutes on two cores; all tests: --thorough, or name a file"
MOST = 4
"""So many members of a family are quick, if it is not named here."""

# Machine code of one property: half a second to a second a member, as dtypes, shapes and GPUs differ.
_ACCESSES = {
    "test_tiles_are_added_in_vectors_where_a_gpu_has_such": "^(float32|bfloat16)",
    "test_an_atomic_whose_result_is_unused_is_a_reduction": "^float(16|32)-sm_90a",
    "test_every_dtype_moves_16_bytes": "^(bool|float16|float32|float64)$",
    "test_ranks": 3,
    "test_rows_are_added_in_vectors_on_sm_90": "^float16",
    "test_saxpy_is_128_bits_wide": 2,
    "test_indices_of_neighbours_make_wide_accesses": 2,
    "test_only_the_edge_is_narrower": 2,
    "test_a_constant_index_that_is_inside_takes_no_mask": 2,
    "test_tiles_inside_are_added_without_predicates": 2,
}
_PIPELINES = {
    "test_gpus_without_tma_copy": "^(gemm-sm_80|persistent-sm_89)$",
    "test_products_by_warps_of_what_the_tma_brings": "^(turned-sm_100a|persistent-sm_120)$",
    "test_products_follow_each_other": r"^(gemm-\(64, 64|turned-\(128, 256|persistent-\(256, 128, 64\)-8|gemm.*-16$)",
    "test_why_there_is_no_ring": "^(told|looked up|carried|written)$",
    "test_a_product_stays_under_way_until_it_is_needed": 1,
    "test_how_wide_copies_are": 1,
    "test_blocks_of_a_cluster_load_a_part_each": 1,
    "test_results_get_their_wide_stores_by_shuffles": 2,
    "test_two_products_in_a_row_have_all_stages_each": 2,
}
_OF_OTHER_TYPES = {
    "test_products_follow_each_other": "^(e4m3, e5m2-persistent|int8, uint8-of_turned_tiles|tf32-persistent)$",
    "test_others_go_through_registers": 2,
    "test_short_sums_of_8_bit_floats_are_added_up": 2,
}

# Every ready-made kernel compiled, for two GPUs: seconds a member, up to half a minute for attention of packed sequences.
_READY_MADE = {
    "test_every_kernel": "(f32 4096|f16 131072|backward f16|gradients f16|histogram i32|transpose|cumsum f32|rope f16)-sm_90a$",
    "test_keys_and_values_of_few_queries_come_ahead": "^pages of 16-sm_90a$",
    "test_products_by_warpgroups": "^(4096|16 rows|bias, gelu)$",
    "test_products_by_warps": "^(ragged|c)$",
    "test_other_products": "^(tf32-sm_80|batch, c, bias-sm_90a|f64-sm_90a)$",
    "test_products_of_other_types_by_warpgroups": "^(e4m3|i8)$",
    "test_products_of_other_types_that_threads_copy": "^e4m3$",
    "test_how_groups_come": "^(tf32|odd rows)$",
    "test_other_groups": "^float32-sm_90a",
    "test_groups_by_warpgroups": "^few",
    "test_steps_that_are_dealt_out": "sm_90a",
    "test_an_embedding_of_odd_rows": 3,
    "test_a_histogram_is_counted_in_shared_memory": "sm_90a",
}
_ATTENTION = {
    "test_scores_are_asked_for_before_values_are_added": "^128-8192-.*causal",
    "test_products_of_gradients_stay_under_way": "^backward_dkv-64-False-False$",
    "test_products_by_warps": None,
    "test_gradients_by_warpgroups": None,
    "test_16_warps_leave_queries_in_shared_memory": "^False$",
    "test_gradients": 4,
    "test_products_by_warpgroups_are_chained": "^64-.*window",
    "test_tiles_of_many_queries": 4,
    "test_scores_that_are_asked_for_ahead": 5,
    "test_gradients_with_products_under_way": 3,
    "test_blocks_of_low_tiles_share_a_multiprocessor": "^128-True$",
    "test_blocks_that_all_have_room_find_nothing_out": 1,
    "test_the_gradients_of_one_tile_of_keys_need_no_sums": "^True-128|128-True",
    "test_lengths_and_masks": 8,
    "test_head_sizes": 7,
}
_PACKED = {
    "test_products_by_warpgroups": "^64-.*window",
    "test_gradients_keep_nothing_of_their_loops_in_local_memory": None,
    "test_products_by_warps": None,
    "test_gradients_by_warpgroups": None,
    "test_gradients_whose_products_stay_under_way": None,
    "test_mixed_lengths": 4,
    "test_gradients": 1,
    "test_gradients_of_head_sizes": 1,
    "test_gradients_are_the_same_each_time": 1,
}

# Results on the CPU device, where many members run the same code on other numbers.
_RESULTS = {
    "kernels/gemm/test_abreast": {
        "test_products": 18,
        "test_columns_that_are_contiguous_are_multiplied_as_many_as_there_are": 3,
        "test_batches_and_groups_have_one_instruction_for_both_tiles": 3,
        "test_warps_that_a_tile_suggests": 2,
    },
    "kernels/gemm/test_grouped": {"test_tiles": 4, "test_groups": 12},
    "kernels/gemm/test_schedules": {
        "test_a_thread_of_exact_float32_reads_an_operand_for_eight_products": 3,
        "test_blocks_of_exact_float32_have_room": 3,
        "test_rows_that_begin_between_sectors_are_written_in_long_pieces": 2,
        "test_rows_that_begin_anywhere_are_written_by_whole_lines": 3,
    },
    "kernels/test_losses": {"test_forward_and_backward": 10},
    "kernels/attention/test_attention_decode": {"test_one_query": 9},
    "kernels/collective/test_products": {"test_scattered": 3, "test_dtypes": 2},
    "kernels/test_moving": {"test_histogram_of_one_value": 4, "test_embedding_by_elements": 12, "test_topk": 10, "test_rope": 8},
    "kernels/test_norms": {"test_forward_and_backward": 8},
    "kernels/test_few_rows": {"test_they_read_and_write_at_full_width": 5},
    "kernels/collective/test_all_reduce": {"test_sums_of_all_sizes": 3, "test_reductions": 5},
    "distributed/test_mesh_collectives": {"test_every_split_becomes_every_other": 8},
    # One test of many cases, or of how a fuzzer tells of them.
    "tensor/test_mapped_partition": {"test_each_tile_is_visited_once_in_many_more_cases": None},
    "fuzz/test_kernels": {"test_a_wrong_result_is_shown_with_a_short_kernel": None},
    "kernels/gemm/test_products": {"test_turned_floats_of_8_bits": 36, "test_tiles_and_parts": 16},
    "lang/test_parity_operands": {"test_computed_operands": 4},  # the code of each is scanned for hazards, too
    "lang/test_parity_pipelines": {"test_products_with_k_contiguous": 40},
    "lang/test_parity_reduction": {"test_positions_by_a_fold_of_two_dtypes": 24},
    # Hundreds of thousands of blocks, which a CPU device interprets one by one: the limit is a GPU's.
    "launch/foreign/test_numba_kernels": {"test_the_simulator_runs_it_on_the_cpu_device": 2},  # a process each
    "launch/test_launch": {"test_a_grid_may_have_any_number_of_blocks_along_any_axis": None},
    "ops/test_soak": {"test_memory_does_not_grow": None},
    # What the harness does with a wrong result, which tests/benchmarks/test_attention.py shows as well.
    "benchmarks/test_varlen": {"test_a_peer_that_is_wrong_is_left_out": None, "test_tilekit_that_is_wrong_is_not_measured": None},
    "benchmarks/test_kernel_runs": {"test_every_case_is_right": 12},
}

FAMILIES: dict[str, int | str | None] = {
    f"tests/{file}.py::{name}": rule
    for file, rules in {
        "compiler/test_accesses": _ACCESSES,
        "compiler/test_arithmetic_code": {
            "test_angles_take_no_local_memory": "^(bfloat16-sm_80|float32-sm_90a)$",
            "test_arithmetic_of_16_bits_is_packed": 2,
        },
        # Layouts, by enumeration of all elements: hundreds of members that differ in one extent.
        "compiler/layouts/test_conversion": {
            "test_shared_memory_without_bank_conflicts": 12,
            "test_every_element_has_an_offset_of_its_own": 1,
        },
        "compiler/test_copies": {"test_copies": 32},
        "compiler/test_cubin": {
            "test_it_agrees_with_cuobjdump": "^sm_90a$",
            "test_it_knows_the_kernels_and_the_sizes_of_their_parameters": 1,
        },
        "compiler/test_emulated": dict.fromkeys(
            ("test_the_first_in_order", "test_places_in_order", "test_sorts", "test_counts", "test_scans"), 17
        ),
        "compiler/test_mapped": {"test_accesses_are_wide_and_nothing_is_in_local_memory": 5},
        "compiler/test_matmul_code": {
            "test_tensor_cores": "^(float16|tf32)-sm_90a$|^(int8|float8|float64)-sm_80$",
            "test_operands_of_16_bits_are_read_as_matrices": 2,
            "test_registers": 4,
        },
        "compiler/layouts/test_mma": {
            "test_operands_that_lie_in_stages": 24,
            "test_products": 24,
            "test_operands_in_other_layouts": 30,
            "test_every_element_of_a_result_has_a_place": 40,
        },
        "compiler/test_ops": {
            "test_the_whole_language_compiles_for_every_dialect": "^(many-sm_80|bits.*sm_90a|chained.*120)$",
            "test_sines_and_cosines_compile_for_every_dialect": 2,
        },
        "compiler/test_parts": {"test_conversions_in_parts": 3},
        "compiler/test_unaligned": {"test_ready_made_kernels_on_rows": 14},
        "compiler/test_ptxas_defects": {
            "test_negatives_of_bytes": 6,
            "test_products_without_registers_are_not_given_to_ptxas": 1,
        },
        "compiler/test_explain": {"test_products_that_ptxas_serialises_are_compiled_otherwise": 2},
        "compiler/test_exact_products": {"test_the_loop_is_multiply_adds": 3, "test_tiles_lie_across_what_is_summed_over": 2},
        "compiler/frontend/test_chosen_tensors": {"test_every_loop_comes_ahead": 2},
        "compiler/passes/test_first_turns": {"test_they_are_as_fast": 4},
        "compiler/passes/test_unswitched": {"test_they_are_as_fast": 2},
        "compiler/test_narrow_rows": {
            "test_16_bits": "^(pipelined-32-TN|plain-16-NT|plain-32-NN)$",
            "test_other_types": "^(e4m3, 64|tf32, 16, turned over)$",
            "test_operands_that_are_computed": 2,
            "test_few_columns": 2,
            "test_products_of_one_tile_are_one": 2,
        },
        "compiler/test_pipelined_code": _PIPELINES,
        "compiler/test_short_rows": {
            "test_columns_that_no_row_has_are_not_computed": "^(72|96)$",
            "test_steps_in_which_both_operands_are_zeros_are_left_out": r"^(40-40|24-48|24-64)",
            "test_operands_of_bytes": "^(int8-40|float8_e4m3fn-168|40-2-int8|168-6-float8)",
            "test_attention_leaves_out_what_heads_do_not_have": "^96$",
            "test_gradients_of_attention_leave_it_out": "^80$",
        },
        # Many texts of one kernel, each compiled; that passes make the same of them is looked at for all.
        "compiler/test_spellings": {
            "test_spellings_are_the_same_machine_code": 2,
            "test_spellings_load_ahead_by_threads_too": 1,
            "test_loops_of_another_kind_have_their_rings": 2,
        },
        "compiler/test_attention_spellings": {
            "test_the_loop_is_rotated": 2,
            "test_the_loop_is_as_short_as_that_of_the_library": 1,
        },
        "compiler/passes/test_ways": {"test_each_loads_ahead_on_a_gpu": 3},
        "compiler/passes/test_abreast": {"test_the_machine_does_one": 3},
        "compiler/passes/test_multiples": {
            "test_tiles_of_slices_come_ahead": 2,
            "test_its_tiles_are_stored_as_wide_as_the_tensors_own": 3,
            "test_tiles_of_slices_with_an_end_come_ahead": 2,
        },
        "compiler/passes/test_fragments": {
            "test_nothing_of_it_goes_through_shared_memory": 1,
            "test_it_lies_as_the_product_does_in_the_end": 2,
        },
        "benchmarks/test_host_side": {"test_each_is_measured_and_right": "^(?!block)"},  # which PyTorch compiles, for a minute
        "benchmarks/test_plain": {"test_attention_of_one_loop_loads_ahead": 2},
        # Two kernels a reason. That each reason has its pair is always looked at.
        "compiler/test_reasons": {
            "test_why_a_loop_has_no_ring": 10,
            "test_why_a_product_is_not_by_an_instruction": 3,
            "test_why_tiles_do_not_come_ahead": 3,
            "test_blocks_are_in_their_order_where_registers_are_short": None,
            "test_why_something_is_given_up": "as it is written",
            "test_what_is_no_product_of_tiles_is_an_error": 1,
        },
        "compiler/test_wgmma_types": _OF_OTHER_TYPES,
        "kernels/attention/test_attention": _ATTENTION,
        "kernels/attention/test_attention_varlen": _PACKED,
        "kernels/collective/test_code": {
            "test_reductions_tell_and_wait_by_the_system": "^bfloat16-2-True$",
            "test_products_are_those_of_the_tensor_cores": 1,
            "test_other_gpus": None,
        },
        "kernels/test_compiled": _READY_MADE,
        **_RESULTS,
    }.items()
    for name, rule in rules.items()
}
_UNKNOWN = pytest.StashKey[list[str]]()


def names_files(config: pytest.Config) -> bool:
    """Whether files, or tests in them, were named: then all of them run."""
    return any("::" in argument or argument.endswith(".py") for argument in config.args)


def is_asked_for(config: pytest.Config) -> bool:
    """Whether this run leaves nothing out."""
    chosen = config.getoption("--thorough") or "thorough" in (config.getoption("markexpr", "") or "")
    return bool(chosen) or names_files(config)


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what is thorough, and take it from `items` unless it was asked for; or some, drawn anew in each run (`--share`)."""
    families: dict[str, list[pytest.Item]] = {}
    for item in items:
        families.setdefault(item.nodeid.partition("[")[0], []).append(item)
    most = None if config.getoption("--device") == "cuda" else MOST
    for name, members in families.items():
        if name in FAMILIES or (most and len(members) > most):
            kept = stays(FAMILIES.get(name, most), [_id(member) for member in members])
            for member, keep in zip(members, kept, strict=True):
                if not keep:
                    member.add_marker("thorough")
    config.stash[_UNKNOWN] = sorted(_wrong(families))
    left_out = [item for item in items if item.get_closest_marker("thorough")]
    if left_out and not is_asked_for(config):
        config.hook.pytest_deselected(items=left_out)
        out = set(left_out)
        items[:] = [item for item in items if item not in out]
    share = config.getoption("--share")
    if share < 1:
        out = {item for item in left_out if random.Random(f"{seeds.first_seed()} {item.nodeid}").random() >= share}
        config.hook.pytest_deselected(items=sorted(out, key=lambda item: item.nodeid))
        items[:] = [item for item in items if item not in out]


def stays(rule: int | str | None, ids: list[str]) -> list[bool]:
    """Which members of a family stay in the quick run."""
    if rule is None:
        return [False] * len(ids)
    if isinstance(rule, str):
        return [re.search(rule, each) is not None for each in ids]
    last = len(ids) - 1
    kept = {round(k * last / max(rule - 1, 1)) for k in range(rule)}
    return [n in kept for n in range(len(ids))]


def unknown(config: pytest.Config) -> list[str]:
    """What the table says of tests that are not there, or wrongly, as far as their files were collected."""
    return config.stash[_UNKNOWN]


def _id(member: pytest.Item) -> str:
    return member.nodeid.partition("[")[2].removesuffix("]")


def _wrong(families: dict[str, list[pytest.Item]]) -> Iterable[str]:
    files = {name.partition("::")[0] for name in families}
    for name, rule in FAMILIES.items():
        if name.partition("::")[0] not in files:
            continue
        ids = [_id(member) for member in families.get(name, ())]
        if not ids:
            yield f"{name}: there is no such test"
        elif rule is not None and not any(stays(rule, ids)):
            yield f"{name}: nothing of it stays in the quick run"
        elif all(stays(rule, ids)):
            yield f"{name}: all of it stays in the quick run"
