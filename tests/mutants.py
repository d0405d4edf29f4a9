"""Traps of meshes, put into a copy of the sources one at a time: the tests that are named must fail.

    PYTHONPATH=src:tests python -m mutants [--only WORD]

Each takes as long as its tests, a minute or less. `tests/test_mutants.py` sees that every trap still finds its place.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MESHES = "tests/engine/test_meshes.py"
PENALIZED = (
    "tests/engine/test_cuttable.py::"
    "test_numbers_few_rows_and_layers_that_nothing_splits_train_as_alone[Penalized-sizes2]"
)
MESSAGES = f"{MESHES}::test_a_step_of_many_micro_batches_sums_gradients_once_and_gathers_no_logits"
TABLES = "tests/run/test_tables.py"
TABLE = f"{MESHES}::test_a_mesh_comes_to_what_one_process_does"


@dataclass(frozen=True)
class Mutant:
    """A trap: `new` in place of `old`, which is once in a file below src/drivetrain; `test` is a pytest selection."""

    trap: str
    file: str
    old: str
    new: str
    test: str


def of_table(trap: str, file: str, old: str, new: str, sizes: str) -> Mutant:
    """One that the table of meshes catches on the mesh of these sizes."""
    return Mutant(trap, file, old, new, f"{TABLE}[{sizes}]")


SHARDS, PARTS = "{'shard': 2}", "{'tensor': 2}"
GROUPS, BOTH = "{'replicate': 2, 'shard': 2}", "{'shard': 2, 'tensor': 2}"

BAGS = "tests/engine/tables/test_bag_matrix.py"
CONTEXT = "tests/engine/test_context.py::test_parts_of_samples_come_to_what_one_process_does"


def of_context(trap: str, file: str, old: str, new: str, sizes: str = "{'context': 2}") -> Mutant:
    """One that the table of meshes along context catches."""
    return Mutant(f"24 context: {trap}", file, old, new, f"{CONTEXT}[{sizes}]")


KEYED = "tests/engine/tables/test_keyed.py"
KEYED_ROWS = "tests/engine/tables/test_keyed_matrix.py"
REFERENCE = f"{KEYED}::test_keys_come_and_go_as_in_the_reference_whoever_holds_their_buckets"

MUTANTS = (
    of_table(
        "1 gradients are averaged over ranks, not added up",
        "engine/layout.py",
        "module.set_gradient_divide_factor(1.0)",
        "module.set_gradient_divide_factor(2.0)",
        SHARDS,
    ),
    of_table(
        "1 weights that layers share are no longer shared",
        "engine/layout.py",
        "module.register_parameter(own, getattr(owner, leaf))",
        "pass",
        PARTS,
    ),
    of_table(
        "1 gradients of norms stay the sum of some positions",
        "engine/sharded.py",
        "open_.append(local_of(gradient))",
        "pass",
        PARTS,
    ),
    of_table(
        "1 a loss that several ranks have computed counts for each",
        "engine/sharded.py",
        "if not self._placement.mesh.tells_losses:",
        "if False:",
        BOTH,
    ),
    Mutant(
        "2 moments begin anew when a run goes on",
        "checkpoint/state.py",
        "held = tensor.to(_slot_device(optimizer, parameter, slot), copy=True)",
        "held = torch.zeros_like(tensor)",
        f"{MESHES}::test_a_run_that_is_resumed_on_its_mesh_has_the_same_bits[{SHARDS}]",
    ),
    Mutant(
        "3 a part is said to lie elsewhere",
        "engine/placement.py",
        "part = Part(here, box_of(parameter.detach()),",
        "part = Part(here, Box.of_whole(box_of(parameter.detach()).shape),",
        f"{MESHES}::test_any_mesh_loads_the_commits_of_any_other_to_the_bit",
    ),
    of_table(
        "4 what was gathered for an evaluation stays, and training goes on with it",
        "engine/cut_networks.py",
        """                yield
        finally:
            reshard(self._networks.values())

    @contextmanager
    def looking""",
        """                yield
        finally:
            pass

    @contextmanager
    def looking""",
        SHARDS,
    ),
    of_table(
        "4 averages are swapped in by memory, of which a cut network does not hear",
        "engine/average.py",
        "elif self._cut:",
        "elif False:",
        SHARDS,
    ),
    of_table(
        "5 passes of ranks without samples count",
        "engine/engine.py",
        "self._backward(moving, losses, work, weight=0.0)",
        "self._backward(moving, losses, work)",
        SHARDS,
    ),
    Mutant(
        "5 such a pass is made over samples of an earlier step, which may not be finite",
        "loop/step_runner.py",
        "if batches.ending is not None and self._spare is not None:",
        "if self._spare is not None:",
        "tests/run/test_meshes.py::test_what_was_not_finite_is_in_no_later_pass_of_a_rank_without_samples",
    ),
    Mutant(
        "6 a loss that reaches a layer on one rank only is waited for",
        "engine/layout.py",
        "module.set_reduce_scatter_unused_params(True)",
        "pass",
        f"{MESHES}::test_networks_that_train_against_each_other_come_to_what_one_process_does[{SHARDS}]",
    ),
    Mutant(
        "6 a backward pass is told its inputs, which leaves no gradient and no error",
        "engine/engine.py",
        "if not self._cut and len(self.networks) > 1:",
        "if len(self.networks) > 1:",
        f"{MESHES}::test_networks_that_train_against_each_other_come_to_what_one_process_does[{SHARDS}]",
    ),
    of_table(
        "7 parts of the positions drop the same",
        "engine/layout.py",
        'module.part = (mesh.at["tensor"], mesh.sizes.tensor) if sequence else (0, 1)',
        "module.part = (0, 1)",
        PARTS,
    ),
    of_table(
        "8 parts that several hold count several times in the norm",
        "engine/sharded.py",
        "if held.holders[0] == rank and held.here.grad is not None:",
        "if held.here.grad is not None:",
        GROUPS,
    ),
    of_table(
        "8 a NaN in a part stays with the rank that holds it",
        "engine/sharded.py",
        "own = torch.stack([self._square(of_network, packed) for of_network in self._held])",
        "own = torch.stack([self._square(of_network, packed) for of_network in self._held]).nan_to_num()",
        SHARDS,
    ),
    Mutant(
        "7 torch's dropout is taken where layers are split",
        "engine/dropout.py",
        "if isinstance(module, nn.Dropout) and module.p and not isinstance(module, Dropout):",
        "if False:",
        "tests/engine/test_cuttable.py::"
        "test_dropout_that_draws_the_same_on_all_parts_is_refused_where_layers_are_split",
    ),
    of_table(
        "1 the gradient of a table of tokens stays whole, beside rows of it",
        "engine/sharded.py",
        "gradient = gradient.redistribute(placements=held.parameter.placements)",
        "pass",
        PARTS,
    ),
    Mutant(
        "what stays gathered for a penalty on gradients stays after the step, and does not see weights change",
        "engine/sharded.py",
        """            unit.reshard()
        packed""",
        """            pass
        packed""",
        PENALIZED,
    ),
    Mutant(
        "survivors hand over parts as if they were all",
        "loop/replicas.py",
        "if tracker is None or not self._engine.placement.replicated:",
        "if tracker is None:",
        "tests/loop/test_replicas.py::test_a_rank_that_holds_parts_stands_for_nobody",
    ),
    Mutant(
        "every micro-batch sums its gradients over ranks",
        "engine/sharded.py",
        """            self._wide.reset()
        self._sum_in_backward(False)""",
        """            self._wide.reset()
        self._sum_in_backward(True)""",
        f"{MESSAGES}[{SHARDS}]",
    ),
    Mutant(
        "logits are gathered",
        "engine/layout.py",
        "_Head(input_layouts=layout, output_layouts=Shard(-1), use_local_output=False)",
        "_Head(input_layouts=layout, output_layouts=Replicate(), use_local_output=False)",
        f"{MESSAGES}[{BOTH}]",
    ),
    Mutant(
        "what a penalty on gradients needs again is given up before",
        "engine/cut_networks.py",
        "self._passed_back = True",
        "pass",
        PENALIZED,
    ),
    of_table(
        "fp16: norms are told with the loss scale",
        "engine/engine.py",
        "norms = [norm / scaler.scale for norm in norms]",
        "pass",
        SHARDS,
    ),
    Mutant(
        "fp16: the loss scale is in no commit",
        "engine/engine.py",
        "tensors |= self.scaler.tensors",
        "pass",
        f"{MESHES}::test_any_mesh_loads_the_commits_of_any_other_to_the_bit",
    ),
    Mutant(
        "9 what several ranks hold is not compared",
        "loop/replicas.py",
        "if len(holders) > 1:",
        "if len(holders) == placement.group.world:",
        "tests/run/test_meshes.py::test_n04_a_bit_that_flips_in_one_copy_of_a_part_names_who_holds_it",
    ),
    Mutant(
        "10 each rank draws its part by itself",
        "engine/drawing.py",
        "whole[held.box.slices] if held else whole",
        "whole.flatten()[: here.numel()].view_as(here)",
        "tests/engine/test_drawing.py",
    ),
    Mutant(
        "activations: what is computed again draws other numbers",
        "engine/activations.py",
        "        self._generators.restore()\n",
        "",
        "tests/engine/test_activations.py",
    ),
    Mutant(
        "activations: what is computed again moves buffers twice",
        "engine/activations.py",
        "owner._buffers[name] = value.clone()",
        "pass",
        "tests/engine/test_activations.py",
    ),
    Mutant(
        "8 losses weigh by the gradients of layers alone",
        "engine/by_loss.py",
        "[(each[one], each[other]) for each in of_rows]",
        "[(each[one], each[other]) for each in of_rows[:0]]",
        f"{TABLES}::test_losses_weigh_by_whole_gradients_of_layers_and_rows_on_any_number_of_processes",
    ),
    Mutant(
        "8 losses weigh by the rows that this rank holds",
        "engine/by_loss.py",
        "if tables and tables.group.world > 1:",
        "if False:",
        f"{TABLES}::test_losses_weigh_by_whole_gradients_of_layers_and_rows_on_any_number_of_processes",
    ),
    Mutant(
        "8 what a loss hands back in a later micro-batch takes the place of the earlier ones",
        "engine/tables/matrix.py",
        "self._kept[loss].add_(found) if loss in self._kept else found",
        "found",
        f"{TABLES}::test_losses_weigh_by_whole_gradients_of_layers_and_rows_on_any_number_of_processes",
    ),
    Mutant(
        "9 layers that are cut count by what is here in one norm with rows",
        "engine/tables/reduction.py",
        "of_dense = list(self._dense.measure())",
        "of_dense = []",
        f"{TABLES}::test_tables_on_several_processes_come_to_what_one_process_does[shards]",
    ),
    Mutant(
        "9 tables are cut as layers are",
        "engine/layout.py",
        "apart = numbers | tables_in(network)",
        "apart = numbers",
        f"{TABLES}::test_tables_on_several_processes_come_to_what_one_process_does[shards]",
    ),
    Mutant(
        "9 a pass without weight asks for rows that no rank has told of",
        "engine/tables/tables.py",
        "self._place = self._places.get(start)",
        "self._place = self._places[start]",
        f"{TABLES}::test_a_rank_that_has_no_samples_in_the_last_step_passes_with_those_that_shard_layers",
    ),
    Mutant(
        "10 rows are rounded by where they lie on their rank",
        "optim/rows.py",
        "(rows - starts[stretch] + first[stretch])",
        "rows",
        f"{TABLES}::test_rows_in_bf16_train_are_resumed_and_whoever_holds_them_rounds_alike[none, by chance]",
    ),
    Mutant(
        "10 rows are rounded alike in every step",
        "optim/rows.py",
        "key_of(self.seed, *at, name)",
        "key_of(self.seed, 0, 0, name)",
        "tests/optim/test_rows.py::test_rows_are_rounded_by_their_place_in_the_table_whoever_holds_them",
    ),
    Mutant(
        "10 masters of rows begin at what was drawn",
        "run/resume.py",
        "mover.restart()",
        "pass",
        f"{TABLES}::test_masters_of_rows_begin_at_the_weights_of_a_commit_without_them",
    ),
    Mutant(
        "keyed: a row that is taken away keeps its optimizer's state",
        "engine/tables/keyed_matrix.py",
        "slot[rows] = 0.0 if name == MASTER else self.mover.initial",
        "pass",
        f"{KEYED_ROWS}::test_a_row_begins_by_its_key_and_leaves_nothing_behind",
    ),
    Mutant(
        "keyed: a new row's numbers follow from its place",
        "engine/tables/keyed_matrix.py",
        "drawn = key_rows(keys, of.name",
        "drawn = key_rows(lines, of.name",
        f"{KEYED_ROWS}::test_a_row_begins_by_its_key_and_leaves_nothing_behind",
    ),
    Mutant(
        "keyed: keys are counted before the vote",
        "engine/tables/keyed_matrix.py",
        "self.mover.moved = self._observe",
        "self._observe(0)",
        f"{KEYED_ROWS}::test_a_step_that_does_not_move_counts_nothing",
    ),
    Mutant(
        "keyed: a row that keys share is moved once for each of them",
        "engine/tables/keyed_matrix.py",
        "if bool(resolved.own.all()):",
        "if True:",
        f"{KEYED_ROWS}::test_keys_with_and_without_rows_come_to_what_the_whole_table_does",
    ),
    Mutant(
        "keyed: who is due to go follows from an interval that begins anew at each start",
        "engine/tables/keyed.py",
        "changes = self._turnover.observe(seen, int(self.clock), position)",
        "changes = self._turnover.observe(seen, 0, position)",
        REFERENCE,
    ),
    Mutant(
        "keyed: what waits is forgotten on a resume",
        "engine/tables/keyed.py",
        '"waiting": self.waiting.lines, ',
        '"waiting": self.waiting.lines.clone(), ',
        f"{KEYED}::test_what_is_loaded_goes_on_as_what_has_never_stopped",
    ),
    Mutant(
        "keyed: keys of yesterday have the age that they would have by today's positions",
        "engine/tables/keyed.py",
        "lines.array[lines.array[:, KEY] >= 0, LAST] -= int(self.clock)",
        "pass",
        f"{KEYED}::test_yesterdays_keys_are_as_old_as_they_were",
    ),
    Mutant(
        "keyed: what was found of the keys outlives a way back",
        "engine/tables/keys.py",
        "        self._index = self._free = None\n\n    def find",
        "        pass\n\n    def find",
        f"{KEYED}::test_state_that_others_have_put_back_is_found_again",
    ),
    Mutant(
        "keyed: a table is cut within buckets",
        "engine/tables/layout.py",
        "ends = edges_of(table.rows).tolist() if table.keyed is not None else range(table.rows + 1)",
        "ends = range(table.rows + 1)",
        f"{KEYED}::test_a_table_is_cut_between_buckets",
    ),
    of_context(
        "gradients of keys and values stay where they are made (Megatron-LM 1464)",
        "engine/context.py",
        "return gather(x.contiguous(), 0, group)",
        "return gather(x.detach().contiguous(), 0, group)",
    ),
    of_context(
        "the loss of one rank's positions counts for all, or each one's as a whole (Megatron-LM 673)",
        "runtime/mesh.py",
        '_SUMMED = ("replicate", "shard", "context")',
        '_SUMMED = ("replicate", "shard")',
    ),
    of_context(
        "the norm counts a part once for all ranks that have some of it",
        "engine/placement.py",
        'axes = ("shard", "context") if name == "shard" else (name,)',
        "axes = (name,)",
        "{'context': 2, 'shard': 2}",
    ),
    of_context(
        "gathered keys are taken for those of a sample in their order",
        "engine/context.py",
        "return torch.cat([*fronts, *reversed(backs)], dim)",
        "return torch.cat([*fronts, *backs], dim)",
    ),
    of_context(
        "places for rotary embeddings are counted from what is here",
        "tasks/language_model/llama.py",
        "self._rotary(here if documents is None else positions_within(documents)[:, here])",
        "self._rotary(here if documents is None else positions_within(documents[:, here]))",
    ),
    of_context(
        "dropout is that of the place among what is here",
        "engine/dropout.py",
        "places = self.positions.here(length * parts, input.device)",
        "places = torch.arange(length * parts, device=input.device)",
    ),
    of_context(
        "between split layers dropout is that of another part",
        "engine/dropout.py",
        "[index * length : (index + 1) * length]",
        "[:length]",
        "{'context': 2, 'tensor': 2}",
    ),
    Mutant(
        "24 context: gradients of single numbers are those of some positions",
        "engine/sharded.py",
        "dist.all_reduce(flat, group=self._placement.mesh.summed.main)",
        "pass",
        "tests/run/test_sliced.py::"
        "test_a_network_whose_positions_meet_in_attention_comes_to_what_one_process_does[Parts]",
    ),
    Mutant(
        "24 context: scores of parts of samples count once for all their ranks",
        "loop/evaluation.py",
        "self._speaks = placement.mesh.speaks_of_positions",
        "pass",
        "tests/run/test_sliced.py::"
        "test_a_network_whose_positions_meet_in_attention_comes_to_what_one_process_does[Parts]",
    ),
    Mutant(
        "24 context: what is scored as a whole is computed of parts",
        "loop/evaluation.py",
        "if task.scores_parts:",
        "if True:",
        "tests/run/test_sliced.py::"
        "test_a_network_whose_positions_meet_in_attention_comes_to_what_one_process_does[Last]",
    ),
    Mutant(
        "keyed: of equal keys the one that lies first stays, wherever it lies",
        "engine/tables/turnover.py",
        "return np.lexsort((key, last, count))",
        "return np.lexsort((last, count))",
        f"{KEYED}::test_of_keys_that_were_seen_alike_the_smaller_ones_have_rows",
    ),
    Mutant(
        "keyed: a key that is let in goes on waiting, too",
        "engine/tables/turnover.py",
        "self._waiting.clear(places[there & ~stays], TAKEN)",
        "pass",
        REFERENCE,
    ),
    Mutant(
        "12 gradients of bags are added up to rows in one go, whichever rank and micro-batch they are of",
        "engine/tables/bag_plan.py",
        "[0, *([bits] if bits else []), *tree_of(world)]",
        "[bits + world.bit_length()]",
        f"{BAGS}::test_bags_that_travel_come_to_the_bits_of_rows_that_travel",
    ),
    Mutant(
        "12 of a later micro-batch bags hand back to those of the first",
        "engine/tables/bag_matrix.py",
        "back[stretch] = gradient[at : at + size]",
        "back[at : at + size] = gradient[at : at + size]",
        f"{BAGS}::test_bags_that_travel_come_to_the_bits_of_rows_that_travel",
    ),
    Mutant(
        "12 factors of bags are lost on the way back",
        "engine/tables/bag_matrix.py",
        "asked.sums.of(arrived, asked.back_scales)",
        "asked.sums.of(arrived)",
        f"{BAGS}::test_bags_that_travel_come_to_the_bits_of_rows_that_travel",
    ),
    Mutant(
        "12 bags travel where lanes are summed",
        "engine/tables/build.py",
        "sharing.lanes or",
        "",
        f"{TABLES}::test_exact_runs_with_tables_have_the_same_bits_on_any_number_of_processes_whoever_holds_rows",
    ),
    Mutant(
        "11 rows that each rank holds count for each in the norm",
        "engine/tables/tables.py",
        "mover.counts = self.group.leader or not work.matrix.layout.everywhere",
        "mover.counts = True",
        f"{TABLES}::test_tables_on_several_processes_come_to_what_one_process_does[four]",
    ),
)


def survives(mutant: Mutant, tree: Path) -> bool:
    """Whether its tests pass on a copy of the sources that has the trap."""
    path = tree / "src" / "drivetrain" / mutant.file
    whole = path.read_text()
    path.write_text(whole.replace(mutant.old, mutant.new))
    surroundings = os.environ | {"PYTHONPATH": os.pathsep.join([str(tree / "src"), str(tree / "tests")])}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", mutant.test]
    try:
        return subprocess.run(command, cwd=tree, env=surroundings, capture_output=True).returncode == 0
    finally:
        path.write_text(whole)


def main() -> int:
    """Try all, or those whose trap has a word; 1 where one survives."""
    parser = argparse.ArgumentParser(prog="python -m mutants", description=__doc__)
    parser.add_argument("--only", default="", help="a word of the trap")
    asked = parser.parse_args()
    left = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        tree = Path(name)
        for part in ("src", "tests", "pyproject.toml"):
            copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
            copy(ROOT / part, tree / part)
        for mutant in MUTANTS:
            if asked.only not in mutant.trap:
                continue
            alive = survives(mutant, tree)
            left += alive
            print("SURVIVES" if alive else "caught  ", mutant.trap, flush=True)
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
