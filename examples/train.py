"""Train a classifier on made-up recordings: one of two tones in noise, beginning anywhere."""

import numpy as np

from lagformer import LagformerClassifier

rng = np.random.default_rng(0)
tone = rng.choice(["high", "low"], size=500)
frequency = np.where(tone == "low", 0.20, 0.30)[:, None]  # radians per sample
phase = rng.uniform(0, 2 * np.pi, (500, 1))
series = np.sin(frequency * np.arange(200) + phase) + rng.normal(0, 0.7, (500, 200))  # (n, length)

model = LagformerClassifier(
    "olympiad", max_epochs=15, batch_size=16, learning_rate=3e-3, random_state=0
)
model.fit(series[:250], tone[:250])
print(f"accuracy on unseen series: {(model.predict(series[250:]) == tone[250:]).mean():.3f}")
