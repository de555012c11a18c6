"""App. H: the weights that balance the KL over groups."""

import pytest
import torch

from dvaepp.objectives import kl_balance


def test_app_h_by_hand() -> None:
    """Means 0, 1 and 4, so α̂ = 0.1, 1.1, 4.1, their sum 5.3 and N = 3."""
    kl = torch.tensor([[0.0, 0.0], [0.5, 1.5], [3.0, 5.0]])
    assert kl_balance(kl).tolist() == pytest.approx([0.3 / 5.3, 3.3 / 5.3, 12.3 / 5.3])
    assert kl_balance(kl, epsilon=1.0).tolist() == pytest.approx([3 / 8, 6 / 8, 15 / 8])


def test_weights_average_to_one_and_follow_the_kl() -> None:
    kl = 10 * torch.rand(16, 7, generator=torch.Generator().manual_seed(0))
    alpha = kl_balance(kl)
    assert alpha.shape == (16,) and alpha.mean().item() == pytest.approx(1)
    assert torch.equal(alpha.argsort(), kl.mean(1).argsort())


def test_equal_groups_and_a_single_group_weigh_one() -> None:
    assert kl_balance(torch.full((4, 3), 2.5)).tolist() == pytest.approx([1] * 4)
    assert kl_balance(torch.rand(1, 5)).tolist() == [1]
    assert kl_balance(torch.zeros(3, 2)).tolist() == pytest.approx([1] * 3)


def test_no_gradient_flows_through_the_weights() -> None:
    kl = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    alpha = kl_balance(kl)
    assert not alpha.requires_grad
    (grad,) = torch.autograd.grad((alpha @ kl).sum(), kl)
    torch.testing.assert_close(grad, alpha[:, None].expand(2, 2))


def test_a_noisy_kl_below_zero_counts_as_zero() -> None:
    noisy, zero = (kl_balance(torch.tensor([[low, low], [1.0, 1.0]])) for low in (-5.0, 0.0))
    assert torch.equal(noisy, zero) and (noisy > 0).all()


@pytest.mark.parametrize("shape", [(3,), (0, 2), (2, 0), (2, 3, 4)], ids=str)
def test_shapes_that_do_not_fit_are_named(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError) as error:
        kl_balance(torch.zeros(shape))
    assert str(error.value) == f"kl must have shape (groups >= 1, batch >= 1), got {shape}"


@pytest.mark.parametrize("epsilon", [0.0, -0.1, float("nan")])
def test_epsilon_must_be_positive(epsilon: float) -> None:
    with pytest.raises(ValueError, match="epsilon must be > 0, got"):
        kl_balance(torch.ones(2, 2), epsilon)
