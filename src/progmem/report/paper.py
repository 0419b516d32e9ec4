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
        "TS-TCC+SoftCLT": {
            "HAR": (82.9, 82.8), "Epilepsy": (95.6, 95.6), "Wafer": (96.5, 96.5),
            "FordA": (81.5, 81.2), "FordB": (74.8, 74.8),
            "PhalangesOutlinesCorrect": (65.4, 64.6), "ElectricDevices": (64.6, 63.2),
        },
        "SSL-ECG": {
            "HAR": (60.0, 54.0), "Epilepsy": (89.3, 86.0), "Wafer": (93.4, 76.1),
            "FordA": (67.9, 66.2), "FordB": (64.4, 60.5),
            "PhalangesOutlinesCorrect": (62.5, 41.2), "ElectricDevices": (60.1, 50.0),
        },
        "CPC": {
            "HAR": (65.4, 63.8), "Epilepsy": (88.9, 85.8), "Wafer": (93.5, 78.4),
            "FordA": (75.8, 75.2), "FordB": (66.8, 65.0),
            "PhalangesOutlinesCorrect": (64.8, 48.2), "ElectricDevices": (59.3, 48.9),
        },
        "SimCLR": {
            "HAR": (65.8, 64.3), "Epilepsy": (88.3, 84.0), "Wafer": (93.8, 78.5),
            "FordA": (55.9, 55.7), "FordB": (50.9, 49.8),
            "PhalangesOutlinesCorrect": (61.5, 38.4), "ElectricDevices": (62.5, 51.2),
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
        "TS-TCC+SoftCLT": {
            "HAR": (92.6, 92.6), "Epilepsy": (96.2, 96.1), "Wafer": (98.2, 98.2),
            "FordA": (93.2, 93.2), "FordB": (88.0, 88.0),
            "PhalangesOutlinesCorrect": (69.4, 66.3), "ElectricDevices": (65.1, 63.8),
        },
        "SSL-ECG": {
            "HAR": (63.7, 58.6), "Epilepsy": (92.8, 89.0), "Wafer": (94.9, 84.5),
            "FordA": (73.6, 70.7), "FordB": (71.7, 69.8),
            "PhalangesOutlinesCorrect": (62.9, 43.3), "ElectricDevices": (63.7, 56.1),
        },
        "CPC": {
            "HAR": (75.4, 74.7), "Epilepsy": (92.8, 90.2), "Wafer": (92.5, 79.4),
            "FordA": (86.5, 86.5), "FordB": (86.3, 86.2),
            "PhalangesOutlinesCorrect": (66.9, 44.3), "ElectricDevices": (62.4, 58.1),
        },
        "SimCLR": {
            "HAR": (75.8, 74.9), "Epilepsy": (91.3, 89.2), "Wafer": (94.8, 83.3),
            "FordA": (69.6, 68.9), "FordB": (63.0, 60.7),
            "PhalangesOutlinesCorrect": (62.7, 42.4), "ElectricDevices": (63.9, 58.6),
        },
    },
}  # fmt: skip

# MSE, MAE by horizon: the table of forecasting (PMT, and SoftCLT as its authors retrained it), and
# TS2Vec as published (tables 7 and 8 of its paper)
FORECASTING: dict[str, dict[str, dict[int, tuple[float, float]]]] = {
    "ETTh1-uni": {
        "PMT": {24: (0.103, 0.257), 48: (0.140, 0.302), 168: (0.184, 0.345),
                336: (0.197, 0.361), 720: (0.177, 0.342)},
        "SoftCLT": {24: (0.045, 0.164), 48: (0.075, 0.212), 168: (0.151, 0.306),
                    336: (0.171, 0.328), 720: (0.367, 0.535)},
        "TS2Vec": {24: (0.039, 0.152), 48: (0.062, 0.191), 168: (0.134, 0.282),
                   336: (0.154, 0.310), 720: (0.163, 0.327)},
    },
    "ETTh1": {
        "PMT": {24: (0.546, 0.516), 48: (0.595, 0.549), 168: (0.714, 0.621),
                336: (0.834, 0.688), 720: (0.952, 0.753)},
        "SoftCLT": {24: (0.525, 0.510), 48: (0.580, 0.545), 168: (0.730, 0.634),
                    336: (0.884, 0.712), 720: (0.989, 0.781)},
        "TS2Vec": {24: (0.599, 0.534), 48: (0.629, 0.555), 168: (0.755, 0.636),
                   336: (0.907, 0.717), 720: (1.048, 0.790)},
    },
    "Electricity-uni": {
        "PMT": {24: (0.250, 0.279), 48: (0.298, 0.310), 168: (0.410, 0.386),
                336: (0.533, 0.465), 720: (0.849, 0.646)},
        "SoftCLT": {24: (0.258, 0.281), 48: (0.311, 0.316), 168: (0.429, 0.395),
                    336: (0.559, 0.472), 720: (0.860, 0.653)},
        "TS2Vec": {24: (0.260, 0.288), 48: (0.319, 0.324), 168: (0.427, 0.394),
                   336: (0.565, 0.474), 720: (0.861, 0.643)},
    },
    "Electricity321": {
        "PMT": {24: (0.378, 0.444), 48: (0.396, 0.452), 168: (0.411, 0.460),
                336: (0.413, 0.462), 720: (0.421, 0.468)},
        "SoftCLT": {24: (0.484, 0.515), 48: (0.497, 0.521), 168: (0.512, 0.531),
                    336: (0.513, 0.533), 720: (0.517, 0.538)},
        "TS2Vec": {24: (0.287, 0.374), 48: (0.307, 0.388), 168: (0.332, 0.407),
                   336: (0.349, 0.420), 720: (0.375, 0.438)},
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

# accuracy / macro-F1 in %, cross-entropy on all labels: the table of full supervision, and for the
# windowed transformers that of the ablation on HAR
SUPERVISED: dict[str, dict[str, tuple[float, float]]] = {
    "pmt": {
        "HAR": (97.8, 98.0), "FordA": (91.5, 91.5), "FordB": (79.3, 79.2), "Wafer": (99.8, 99.5),
    },
    "vanilla": {
        "HAR": (97.7, 97.9), "FordA": (85.5, 85.5), "FordB": (80.5, 80.5), "Wafer": (99.5, 98.7),
    },
    "windowed": {"HAR": (96.8, 97.1)},
    "windowed_state": {"HAR": (96.7, 97.0)},
}  # fmt: skip
