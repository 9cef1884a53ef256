"""The cost of an encoder layer in multiply-adds."""


def multiply_adds(
    queries: int, keys: int | None = None, *, embed_dim: int, mlp_dim: int
) -> tuple[int, int]:
    """Count the multiply-adds of one encoder layer: of the attention matrices, and of the rest.

    Parameters
    ----------
    queries : int
        Tokens N.
    keys : int, optional
        Tokens M at which each query may look; default all N. The pooling that makes fewer keys and
        values is not counted.
    embed_dim, mlp_dim : int
        D, and the width of the MLP's hidden layer.

    Returns
    -------
    (matrices, rest) : int
        2 N M D for q k^T and for A v; 4 N D^2 for the projections to q, k, v and out, and
        2 N D MLP for the MLP's two layers. Softmax, norms, biases and activations are left out.

    References
    ----------
    Liu et al., "Swin Transformer" (ICCV 2021), equations 1 and 2, which leave the MLP out.
    """
    matrices = 2 * queries * (queries if keys is None else keys) * embed_dim
    rest = 4 * queries * embed_dim**2 + 2 * queries * embed_dim * mlp_dim
    return matrices, rest
