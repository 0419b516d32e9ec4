"""Figures that the paper prints, to stand beside ours: marked as the paper's wherever shown."""

# accuracy / macro-F1 in %, linear probe, by share of labels: the table of low-label classification
CLASSIFICATION: dict[str, dict[str, dict[str, tuple[float, float]]]] = {
    "1%": {
        "PMT": {
            "HAR": (92.9, 93.2), "Epilepsy": (96.6, 94.7), "Wafer": (98.7, 96.5),
            "FordA": (88.2, 88.2), "FordB": (76.3, 76.2),
            "PhalangesOutlinesCorrect": (68.2, 65.7), "ElectricDevices": (64.1, 58.1),
        },
        "TS2Vec+SoftCLT": {
            "HAR": (91.0, 91.0), "Epilepsy": (96.3, 94.1), "Wafer": (95.3, 88.1),
            "FordA": (87.1, 87.1), "FordB": (67.9, 67.9),
            "PhalangesOutlinesCorrect": (63.6, 62.8), "ElectricDevices": (62.0, 53.0),
        },
    },
    "5%": {
        "PMT": {
            "HAR": (95.5, 95.9), "Epilepsy": (96.7, 94.9), "Wafer": (99.0, 97.2),
            "FordA": (89.5, 89.5), "FordB": (76.7, 76.7),
            "PhalangesOutlinesCorrect": (72.7, 70.6), "ElectricDevices": (65.9, 60.8),
        },
        "TS2Vec+SoftCLT": {
            "HAR": (92.1, 92.1), "Epilepsy": (96.7, 94.9), "Wafer": (98.8, 96.8),
            "FordA": (92.5, 92.5), "FordB": (78.8, 78.6),
            "PhalangesOutlinesCorrect": (70.9, 69.7), "ElectricDevices": (62.4, 54.4),
        },
    },
}  # fmt: skip

# AUC, top-1, macro-F1 of the end-of-sequence probe on FordA: the table of cue detection
CUE: dict[str, tuple[float, float, float]] = {
    "PMT": (0.994, 0.921, 0.920),
    "PMT, λ_PCL 0": (0.983, 0.831, 0.824),
    "xLSTM": (0.956, 0.820, 0.817),
    "Transformer-XL": (0.933, 0.795, 0.790),
    "TS2Vec+SoftCLT": (0.649, 0.638, 0.604),
}

# accuracy / macro-F1 in %, cross-entropy on all labels: the table of full supervision
SUPERVISED: dict[str, dict[str, tuple[float, float]]] = {
    "pmt": {
        "HAR": (97.8, 98.0), "FordA": (91.5, 91.5), "FordB": (79.3, 79.2), "Wafer": (99.8, 99.5),
    },
    "vanilla": {
        "HAR": (97.7, 97.9), "FordA": (85.5, 85.5), "FordB": (80.5, 80.5), "Wafer": (99.5, 98.7),
    },
}  # fmt: skip
