"""What each metric is, in a sentence or two: for pages, tables and lists."""

# n samples; p the largest probability of a sample (its confidence), ŷ its class, y the label.
TEXTS = {
    "accuracy": "Share of the samples whose most probable class is the label. A temperature does not change it.",
    "nll": "Negative log-likelihood: mean of −ln(probability given to the label), in nats. A proper score: the true "
    "probabilities have the lowest expectation. One label that was given probability 0 makes it infinite.",
    "brier": "Mean over samples of the squared distance between the probabilities and the one-hot label, summed over "
    "classes (from 0 to 2, shown in per cent of 1). A proper score.",
    "ece": "Expected calibration error: samples are put into {bins} bins of equal width by confidence; the mean over bins, "
    "weighted by their share of the samples, of |mean confidence − accuracy|. Chance alone makes it positive: a calibrated "
    "model has an ECE above 0, the more so the fewer the samples.",
    "debiased_ece": "ECE less an estimate of what chance adds to |mean confidence − accuracy| in each bin (normal noise of "
    "variance accuracy (1 − accuracy) / count). Of a calibrated model's ECE about 40 % goes; it may be negative.",
    "mce": "Maximum calibration error: the largest |mean confidence − accuracy| of the {bins} bins. A bin of a few samples "
    "can decide it.",
    "adaptive_ece": "ECE over {bins} bins of equal count instead of equal width.",
    "classwise_ece": "For each class, the ECE ({bins} equal-width bins) of its probability against whether the label is "
    "that class, over all samples; then the mean over classes.",
    "smooth_ece": "Smooth ECE: the bins are replaced by a Gaussian kernel (bandwidth {bandwidth}) that is reflected at 0 "
    "and 1; the integral of the absolute smoothed residual.",
    "kernel_ece": "Mean over samples of |confidence − kernel estimate of the accuracy at that confidence| (Gaussian kernel).",
    "misclassification_auroc": "Probability that a correct prediction is more confident than a wrong one: 50 % is no "
    "better than chance.",
    "aurc": "Area under the risk–coverage curve: the mean error rate among the k most confident samples, over all k.",
    "high_confidence_error_rate": "Error rate among the samples with confidence {threshold} or more.",
    "high_confidence_error_share": "Share of all errors that are made with confidence {threshold} or more.",
    "high_confidence_error_confidence": "Mean confidence of the errors made with confidence {threshold} or more.",
}
