"""The float32 Muon against torch's, which iterates in bfloat16."""

import copy

import torch

from pocket.muon import Muon

SHAPES = [(24, 40), (40, 24), (24, 40), (16, 16)]


def trained(optimizer_of, steps: int = 4) -> tuple[list[torch.nn.Parameter], torch.optim.Optimizer]:
    generator = torch.Generator().manual_seed(0)
    matrices = [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]
    optimizer = optimizer_of(matrices)
    for _ in range(steps):
        for matrix in matrices:
            matrix.grad = torch.randn(matrix.shape, generator=generator)
        optimizer.step()
    return matrices, optimizer


def torchs(matrices):
    return torch.optim.Muon(matrices, lr=0.01, weight_decay=0.05, adjust_lr_fn="match_rms_adamw")


def ours(matrices):
    return Muon(matrices, lr=0.01, weight_decay=0.05)


def test_steps_are_those_of_torch_up_to_bfloat16():
    start, _ = trained(ours, steps=0)
    theirs, _ = trained(torchs)
    mine, _ = trained(ours)
    for before, expected, actual in zip(start, theirs, mine, strict=True):
        moved = (expected - before).norm()
        assert moved > 0.01
        assert (actual - expected).norm() < 0.03 * moved


def test_a_step_leaves_singular_values_near_one():
    """Without decay, a first step of rate 1 subtracts the orthogonal matrix times AdamW's scale."""
    matrix = torch.nn.Parameter(torch.randn(16, 32, generator=torch.Generator().manual_seed(1)))
    before = matrix.detach().clone()
    matrix.grad = torch.randn(16, 32, generator=torch.Generator().manual_seed(2))
    Muon([matrix], lr=1.0, weight_decay=0.0).step()
    values = torch.linalg.svdvals((before - matrix.detach()) / (0.2 * 32**0.5))
    assert values.min() > 0.6 and values.max() < 1.3


def test_saved_states_go_from_torchs_to_ours_and_on():
    matrices, theirs = trained(torchs, steps=2)
    copied = [torch.nn.Parameter(m.detach().clone()) for m in matrices]
    mine = ours(copied)
    mine.load_state_dict(copy.deepcopy(theirs.state_dict()))
    for group in (matrices, copied):
        for number, matrix in enumerate(group):
            matrix.grad = torch.randn(matrix.shape, generator=torch.Generator().manual_seed(number))
    theirs.step()
    mine.step()
    for expected, actual in zip(matrices, copied, strict=True):
        assert (actual - expected).abs().max() < 0.005


def test_matrices_without_gradients_stay():
    matrix = torch.nn.Parameter(torch.ones(2, 3))
    Muon([matrix], lr=1.0, weight_decay=0.5).step()
    assert bool((matrix == 1).all())
