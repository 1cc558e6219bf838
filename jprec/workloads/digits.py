"""The digits: 1797 real images of 8 x 8 pixels, with a fixed split."""

import functools

import numpy as np

#: The first images of the shuffled set are trained on, the other 597 are held out.
TRAINING_IMAGES = 1200


@functools.cache
def load() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """((images, labels) to train on, (images, labels) held out).

    Images are [n, 64] float32 in [0, 1] (sixteen grey levels), labels [n] int32 in 0..9. The split
    is the same everywhere: NumPy promises never to change the stream of `RandomState`.

    Raises:
      ImportError: without scikit-learn, which carries the images.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError(
            "the digits come with scikit-learn: install jprec with its lab extra, "
            "pip install 'jprec[lab]'."
        ) from error
    digits = load_digits()
    order = np.random.RandomState(0).permutation(len(digits.target))
    images = (digits.data[order] / 16).astype(np.float32)
    labels = digits.target[order].astype(np.int32)
    n = TRAINING_IMAGES
    return (images[:n], labels[:n]), (images[n:], labels[n:])
