"""What an analyst would have on the pooled table: linear models and gradient boosting, by
scikit-learn (extra `data`).

Linear models have standardised columns, and as much regularisation as cross-validation on the
training rows chooses; gradient boosting has scikit-learn's defaults.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...config.sections import PooledName
from ...core.errors import DataError
from ...data.dataset import Goal
from ...data.placement import Placement
from .fitted import Fitted

Array = npt.NDArray[Any]

FOLDS = 5
STRENGTHS = tuple(10.0**power for power in range(-3, 4))  # of logistic regression: C
PENALTIES = tuple(np.logspace(-3, 5, 17).tolist())  # of ridge regression: alpha
LEAST = -30.0  # the logarithm of a probability that counts as 0


def columns(rows: Placement) -> Array:
    """All silos' features beside each other, a row each."""
    flat = [x.flatten(1).to(torch.float64) for x in rows.x.values()]
    return torch.cat(flat, 1).cpu().numpy()


def estimator(name: PooledName, goal: Goal, labels: Array, seed: int) -> Any:
    """The scikit-learn model, not trained yet."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    from sklearn.linear_model import RidgeCV
    from sklearn.multioutput import MultiOutputRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if name == "logistic":
        return _logistic(labels, seed)
    if name == "ridge":
        return make_pipeline(StandardScaler(), RidgeCV(alphas=PENALTIES))
    if goal != "number":
        return HistGradientBoostingClassifier(random_state=seed)
    trees = HistGradientBoostingRegressor(random_state=seed)
    return MultiOutputRegressor(trees) if labels.ndim == 2 else trees


def _logistic(labels: Array, seed: int) -> Any:
    """Its strength is chosen by the likelihood of rows left out, the same share of every class in
    each fold; where a class has one row only, nothing can be left out."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, StratifiedKFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
    folds = min(FOLDS, int(np.unique(labels, return_counts=True)[1].min()))
    if folds < 2:
        return model
    return GridSearchCV(
        model,
        {"logisticregression__C": STRENGTHS},
        scoring="neg_log_loss",
        cv=StratifiedKFold(folds, shuffle=True, random_state=seed),
    )


def fit(name: PooledName, goal: Goal, outputs: int, train: Placement, seed: int) -> Fitted:
    """Train it on the training rows."""
    y = train.labels().cpu().numpy()
    labels = y.astype(np.int64) if goal != "number" else y.astype(np.float64)
    if goal != "number" and len(np.unique(labels)) < 2:
        raise DataError("the training rows are all of one class: nothing can be learned")
    model = estimator(name, goal, labels, seed)
    try:
        model.fit(columns(train), labels)
    except ValueError as problem:
        raise DataError(f"scikit-learn cannot be trained on these rows ({problem})") from None

    def scores(rows: Placement) -> Tensor:
        return torch.from_numpy(_scores(model, goal, outputs, columns(rows)))

    return Fitted(scores, _notes(model))


def _scores(model: Any, goal: Goal, outputs: int, x: Array) -> Array:
    """As the loss takes them: numbers, a logit, or a logarithm for every class."""
    if goal == "number":
        return np.asarray(model.predict(x), dtype=np.float64).reshape(len(x), -1)
    if goal == "binary":
        return np.asarray(model.decision_function(x), dtype=np.float64).reshape(-1, 1)
    known = np.maximum(np.log(np.maximum(model.predict_proba(x), 1e-300)), LEAST)
    scores = np.full((len(x), outputs), LEAST)  # a class without training rows is never said
    scores[:, model.classes_] = known
    return scores


def _notes(model: Any) -> dict[str, Any]:
    """What cross-validation chose."""
    if hasattr(model, "best_params_"):
        return {"C": float(next(iter(model.best_params_.values())))}
    last = model[-1] if hasattr(model, "steps") else model
    return {"alpha": float(last.alpha_)} if hasattr(last, "alpha_") else {}
