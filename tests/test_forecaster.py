"""PMTForecaster: dated predictions of a user's own series, with the spread of past errors."""

import shlex

import numpy as np
import pandas as pd
import pytest
import torch
from estimator_setup import TINY
from forecast_setup import LastValues, daily_waves, hours, small_model

import progmem
from progmem.cli import main
from progmem.data.own_series import as_dated_values
from progmem.errors import InputError
from progmem.forecasting import own_encoder
from progmem.probes.forecast import ridge_path

P = 30
T, END, LAST = 300, 180, 240  # two fifths: one that chooses, one that is only looked at


def fitted(values, **options):
    return progmem.PMTForecaster(LastValues(), context=P, **options).fit(values, hours(len(values)))


def test_predictions_follow_the_last_date_with_a_column_a_quantile():
    table = pd.DataFrame(daily_waves(T, 2), hours(T), ["load", "heat"])
    found = progmem.PMTForecaster(LastValues(), context=P).fit(table).predict(5)
    assert found.index.tolist() == hours(T + 5)[T:].tolist() and found.index.name == "date"
    assert list(found.columns) == [
        "load", "load 10%", "load 50%", "load 90%", "heat", "heat 10%", "heat 50%", "heat 90%",
    ]  # fmt: skip
    assert (found["heat 10%"] < found["heat 50%"]).all()
    assert (found["heat 50%"] < found["heat 90%"]).all()
    assert table["heat"].min() < found["heat"].min() and found["heat"].max() < table["heat"].max()


def test_a_prediction_and_its_errors_are_those_of_plain_loops():
    values = daily_waves(T, 2)
    forecaster = fitted(values, quantiles=[0.5])
    found = forecaster.predict(3)
    mean, scale = values[:END].mean(0), values[:END].std(0)
    one = forecaster.series_[""]
    x, scaled = one.data.x[0], (values - mean) / scale

    def known(times, c):  # the newest sample is the token of this encoder
        own = [[*x[t].astype(np.float32), *scaled[t - P : t + 1, c]] for t in times]
        return torch.tensor(np.array(own))

    def follows(times, c):
        return torch.tensor(np.array([[scaled[t + h, c] for h in (1, 2, 3)] for t in times]))

    parts = range(P, END - 3), range(END, LAST - 3), range(LAST, T - 3)
    token = slice(x.shape[1])
    estimate = forecaster.estimate(3)
    for c in (0, 1):
        chosen = one.fitted[3].columns[c].ridge
        assert estimate["used"].iloc[c] == "values alone" and not chosen.weight[token].any()
        errors = []
        for count in (1, 2):
            times = [t for part in parts[:count] for t in part]
            (ridge,) = ridge_path(
                known(times, c)[:, x.shape[1] :], follows(times, c), [chosen.alpha]
            )
            next_part = parts[count]
            errors.append(
                follows(next_part, c) - ridge.predict(known(next_part, c)[:, x.shape[1] :])
            )
        assert estimate["forecast"].iloc[c] == pytest.approx(errors[1].square().mean().item())
        middle = np.median(torch.cat(errors).numpy(), axis=0) * scale[c]
        now = chosen.predict(known([T - 1], c))[0].numpy() * scale[c] + mean[c]
        np.testing.assert_allclose(found[str(c)], now, rtol=1e-6)
        np.testing.assert_allclose(found[f"{c} 50%"], now + middle, rtol=1e-6)
        for name, back in (("repeat last", [0, 0, 0]), ("seasonal 24", [23, 22, 21])):
            naive = np.array([[scaled[t - b, c] for b in back] for t in parts[2]])
            wrong = follows(parts[2], c).numpy() - naive
            assert estimate[name].iloc[c] == pytest.approx((wrong**2).mean())


def test_what_is_repeated_over_a_gap_is_the_newest_value_before_it():
    values = daily_waves(T, 2)
    values[LAST + 5 : LAST + 40, 0] = np.nan  # of one column: where all are missing nothing starts
    newest = pd.DataFrame(values).ffill().to_numpy()
    wrong = (values[LAST + 1 :] - newest[LAST:-1]) / values[:END].std(0)
    found = fitted(values).estimate(1)["repeat last"]
    np.testing.assert_allclose(found, np.nanmean(wrong**2, axis=0))


def test_the_last_part_decides_nothing():
    values = daily_waves(T)
    first = fitted(values)
    first.estimate(3)
    changed = values.copy()
    changed[LAST:] = np.random.default_rng(0).normal(size=(T - LAST, 1)) * 50
    other = fitted(changed)
    ours, theirs = (f.estimate(3).iloc[0] for f in (first, other))
    assert (ours["used"], ours["why"]) == (theirs["used"], theirs["why"])
    alphas = [f.series_[""].fitted[3].columns[0].ridge.alpha for f in (first, other)]
    assert alphas[0] == alphas[1] and ours["forecast"] < theirs["forecast"]


def test_several_horizons_and_many_series_are_levels_of_the_index(tmp_path):
    tables = {
        name: pd.DataFrame(daily_waves(T, seed=seed), hours(T), ["kW"])
        for seed, name in enumerate(("north", "south"))
    }
    forecaster = progmem.PMTForecaster(LastValues(), context=P).fit(tables)
    found = forecaster.predict([2, 4])
    assert found.index.names == ["series", "horizon", "date"] and len(found) == 12
    alone = progmem.PMTForecaster(LastValues(), context=P).fit(tables["south"])
    pd.testing.assert_frame_equal(found.loc["south", 4], alone.predict(4), check_freq=False)
    assert forecaster.estimate([2, 4]).index.names == ["series", "horizon", "column"]
    forecaster.save(tmp_path / "kept")
    again = progmem.PMTForecaster.load(tmp_path / "kept", LastValues())
    pd.testing.assert_frame_equal(again.predict([2, 4], tables), found)
    forecaster.save(tmp_path / "kept")  # over an earlier save
    with pytest.raises(InputError, match="fitted on the series north, south, got north"):
        again.predict(2, {"north": tables["north"]})
    with pytest.raises(InputError, match="dates go with a newer series; give that too"):
        forecaster.predict(2, dates=hours(T))
    for bad, message in (
        ({}, "the mapping is empty"),
        ({"a": tables["north"], "b": tables["north"].rename(columns={"kW": "W"})},
         "b has the columns W, a has kW: series that are forecast together have the same"),
        ({"a": tables["north"], "b": tables["north"].iloc[:20]}, "b: a training part of 12"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=message):
            progmem.PMTForecaster(LastValues(), context=P).fit(bad)


def test_an_index_of_periods_is_one_of_dates():
    kW = pd.Series(daily_waves(T)[:, 0], hours(T).to_period("h"), name="kW")
    for series in (kW, kW.to_frame()):
        assert as_dated_values(series).dates.tolist() == hours(T).tolist()


def test_a_context_that_nobody_gave_suits_the_series():
    def context(count, step):
        dates = pd.date_range("2024-01-01", periods=count, freq=step)
        made = progmem.PMTForecaster(LastValues())
        return made.fit(daily_waves(count), dates).series_[""].context

    assert context(1500, "h") == 200 and context(2000, "5min") == 288 and context(100, "h") == 20


def test_nine_of_ten_later_values_lie_below_the_highest_quantile():
    below = []
    for seed in range(6):
        values = daily_waves(1200, seed=seed)
        forecaster = fitted(values[:1000])
        for end in range(1000, 1190, 10):
            found = forecaster.predict(5, values[:end], hours(end))
            below.append(values[end : end + 5, 0] < found["value 90%"])
    assert 0.85 < np.mean(below) < 0.95


def test_a_rhythm_is_predicted_as_well_as_its_noise_allows():
    """Of the newest sample alone, which is this encoder's token, the rhythm is not known."""
    values = daily_waves(1200)
    forecaster = fitted(values[:1000])
    wrong = [
        values[end : end + 5, 0] - forecaster.predict(5, values[:end], hours(end))["value"]
        for end in range(1000, 1190, 10)
    ]
    assert 0.08 < np.std(wrong) < 0.12


def test_gaps_are_left_out_of_what_is_learnt_and_predictions_stay_finite():
    values = daily_waves(T, 2)
    values[50:60] = np.nan
    values[np.random.default_rng(0).random((T, 2)) < 0.1] = np.nan
    found = fitted(values).predict(24)
    assert np.isfinite(found.to_numpy()).all()
    whole = fitted(daily_waves(T, 2)).predict(24)
    assert (found["0"] - whole["0"]).abs().max() < 1


def test_a_column_that_never_varied_is_not_scaled_by_a_rounding():
    values = np.full(T, 0.1)
    values[-1] = 0.2
    forecaster = fitted(values)
    one = forecaster.series_[""]
    assert one.scale.tolist() == [1.0] and one.mean != 0.1
    assert forecaster.estimate(1)["repeat last"].item() == pytest.approx(0.01 / 59)
    assert forecaster.predict(2)["value"].to_numpy() == pytest.approx(0.1, abs=0.01)


def test_masked_values_are_missing():
    values = daily_waves(T)
    hidden = np.arange(T) % 7 == 3
    masked = np.ma.masked_array(np.where(hidden, 1e6, values[:, 0]), hidden)
    gappy = np.where(hidden, np.nan, values[:, 0])
    pd.testing.assert_frame_equal(fitted(masked).predict(3), fitted(gappy).predict(3))


def test_a_model_without_covariates_sees_the_columns_alone():
    values = daily_waves(T)
    values[70] = np.nan
    for channels in (1, 8):
        model = small_model(channels)
        forecaster = progmem.PMTForecaster(model, context=P).fit(values[:, 0], hours(T))
        one = forecaster.series_[""]
        assert one.data.x.shape[2] == channels
        there = one.known.features.observed
        assert int((~there).sum()) == (1 if channels == 1 else 0)  # a date is always observed
        places = one.places("train", 4)
        assert 70 not in places.time and 71 in places.time  # its date alone is not learnt from
        used = one.known.at(places)
        assert used.any(1).all()  # nothing is learnt from no feature
        assert np.isfinite(forecaster.predict(4).to_numpy()).all()


@pytest.mark.parametrize(
    "change", [lambda x: x.requires_grad_(), lambda x: x.float(), lambda x: x.bfloat16()]
)
def test_tensors_of_any_kind_are_series(change):
    values = torch.tensor(daily_waves(T)).bfloat16().double()
    expected = fitted(values.numpy()).predict(3)
    pd.testing.assert_frame_equal(fitted(change(values)).predict(3), expected)


def ways_to_give_one_series(folder):
    """The same dated series of two columns, as people have it."""
    polars = pytest.importorskip("polars")
    xarray = pytest.importorskip("xarray")

    table = pd.DataFrame(daily_waves(T, 2), hours(T), ["kW", "degC"]).rename_axis("date")
    dated = table.reset_index()
    table.to_csv(folder / "x.csv")
    return {
        "indexed by dates": table,
        "a column of dates": dated,
        "a column called ds": dated.rename(columns={"date": "ds"}),
        "polars": polars.from_dict(dated.to_dict("list")),
        "xarray": xarray.DataArray(
            table.to_numpy(), dims=("time", "column"),
            coords={"time": hours(T), "column": ["kW", "degC"]}),
        "recordings": progmem.read(folder / "x.csv"),
        "a path": folder / "x.csv",
        "the text of a path": str(folder / "x.csv"),
    }  # fmt: skip


def test_one_series_is_the_same_whatever_it_is_given_as(tmp_path):
    ways = ways_to_give_one_series(tmp_path)

    def predicted(series):
        forecaster = progmem.PMTForecaster(LastValues(), context=P).fit(series)
        newer = forecaster.predict(3, series)
        pd.testing.assert_frame_equal(newer, forecaster.predict(3))
        return newer

    expected = predicted(ways["indexed by dates"])
    for way, series in ways.items():
        pd.testing.assert_frame_equal(predicted(series), expected, check_freq=False, obj=way)


def test_many_series_are_the_same_whatever_they_are_given_as():
    tables = {f"m{i}": pd.DataFrame(daily_waves(T, seed=i), hours(T), ["kW"]) for i in (0, 1)}
    long = pd.concat(tables, names=["series", "date"])
    listed = [table.rename_axis("date").reset_index() for table in tables.values()]
    ways = [long, long.reset_index(), progmem.read(long), long.reset_index().rename(
        columns={"series": "unique_id", "date": "ds"})]  # fmt: skip

    def predicted(series):
        return progmem.PMTForecaster(LastValues(), context=P).fit(series).predict(3)

    expected = predicted(tables)
    for series in ways:
        pd.testing.assert_frame_equal(predicted(series), expected, check_freq=False)
    assert predicted(listed).index.get_level_values("series").unique().tolist() == [
        "series 0", "series 1"]  # fmt: skip
    np.testing.assert_allclose(predicted(listed).to_numpy(), expected.to_numpy())


def test_a_fit_that_is_refused_changes_nothing():
    forecaster = fitted(daily_waves(T))
    expected = forecaster.predict(3)
    with pytest.raises(InputError, match="no value in the training part"):
        forecaster.fit(np.full((T, 2), np.nan), hours(T, "2030-01-01"))
    forecaster.encoder_.encode = lambda x: 1 / 0
    with pytest.raises(ZeroDivisionError):
        forecaster.fit(daily_waves(T, 2), hours(T, "2030-01-01"))
    pd.testing.assert_frame_equal(forecaster.predict(3), expected)


GAP = daily_waves(T)
GAP[100:] = np.nan


@pytest.mark.parametrize(
    "series, dates, options, message",
    [
        (pd.DataFrame(daily_waves(T)).rename(index=str), None, {},
         "give the dates of the series, or a DataFrame that is indexed"),
        (daily_waves(T), None, {}, "the model sees time covariates; give the dates of the series"),
        (daily_waves(T), hours(T + 1), {}, "300 samples, 301 dates"),
        (daily_waves(T), hours(T + 1).delete(40), {}, "dates must be regular: .* put rows of NaN"),
        (np.zeros((2, 3, 4)), hours(2), {}, r"must be \(time,\) or \(time, columns\), got \(2, 3"),
        (pd.DataFrame({"a": ["x"] * T}), hours(T), {}, "column a must hold real numbers, got"),
        (pd.DataFrame({}, index=hours(T)), None, {}, "the series has no columns"),
        (pd.DataFrame(daily_waves(T, 2), columns=["a", "a"]), hours(T), {},
         "columns must have different names; 'a' is there twice"),
        (np.where(np.arange(T) == 7, np.inf, 0.0), hours(T), {},
         "column value is infinite at 2024-01-01 07:00:00; mark missing by NaN"),
        (daily_waves(30), hours(30), {}, "a training part of 18 samples holds no window of 31"),
        (np.full(T, np.nan), hours(T), {}, "column value has no value in the training part"),
        ({"a": pd.concat({"b": hours(T).to_frame(), "c": hours(T).to_frame()})}, None, {},
         "a: values must be real numbers"),
        ({"a": pd.concat({c: pd.DataFrame({"kW": GAP[:, 0]}, hours(T)) for c in "bc"})}, None, {},
         "a: it holds 2 series; give one for each name"),
        ("nowhere.csv", None, {}, "there is no nowhere.csv; give a"),
        ({}, None, {}, "there is no series to forecast: the mapping is empty"),
        ({"a": GAP}, hours(T), {}, "give many series as tables that are indexed by their dates"),
        (GAP, hours(T), {}, "nothing of column value is observed in the choosing part 3 "),
        (daily_waves(T), hours(T), {"horizon": 60}, "horizon 60 does not fit into the choosing"),
        (daily_waves(T), hours(T), {"horizon": 2.5}, "horizon must be a whole number from 1 up"),
        (daily_waves(T), hours(T), {"validation": 0.5}, "validation must be a share between 0 a"),
        (daily_waves(T), hours(T), {"quantiles": [10]}, "quantiles must lie between 0 and 1"),
        (pd.DataFrame(daily_waves(T, 2), hours(T)), hours(T) + pd.Timedelta("1D"), {},
         "indexed by other dates than those given"),
        (daily_waves(T), hours(T), {"quantiles": iter([0.1, 2])}, "quantiles must lie between 0"),
        (daily_waves(T), hours(T), {"quantiles": 0.5}, "quantiles must lie between 0 and 1, got 0"),
        (daily_waves(T), hours(T), {"quantiles": []}, r"give at least one quantile, .* got \[\]"),
        (daily_waves(T), hours(T), {"quantiles": ["half"]}, "quantiles must lie between 0 and 1"),
        (daily_waves(T), hours(T), {"quantiles": [0.1, 0.1]}, "two columns 'value 10%', one of th"),
        (pd.DataFrame(daily_waves(T, 2), columns=["a", "a 90%"]), hours(T), {},
         "two columns 'a 90%', one of them a quantile"),
        (daily_waves(T), hours(T), {"validation": "0.2"}, "validation must be a share between 0 a"),
        (daily_waves(T), hours(T), {"context": 0}, "context must be a whole number from 1 up"),
        (daily_waves(T), hours(T), {"encoder": 3}, "the encoder must have a method encode"),
        (daily_waves(T, 3), hours(T), {"encoder": small_model(8)},
         "the series has 3 columns; the model has 8 channels, which is neither 3 nor, with 7"),
        (np.where(np.arange(T) == T - 1, np.nan, daily_waves(T)[:, 0]), hours(T),
         {"encoder": small_model(1)}, "nothing is observed at 2024-01-13 11:00:00, the end; cut"),
        (np.where(np.arange(T) == T - 1, np.nan, daily_waves(T)[:, 0]), hours(T),
         {"encoder": small_model(8)}, "nothing is observed at 2024-01-13 11:00:00, the end; cut"),
    ],
)  # fmt: skip
def test_series_that_cannot_be_forecast_are_named(series, dates, options, message):
    options = {"encoder": LastValues(), "context": P, "horizon": 3} | options
    encoder, horizon = options.pop("encoder"), options.pop("horizon")
    with pytest.raises(InputError, match=message):
        progmem.PMTForecaster(encoder, **options).fit(series, dates).predict(horizon)


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A folder with a model of one column and its covariates, and a dated file."""
    monkeypatch.chdir(tmp_path)
    small_model(8).save("model")
    table = pd.DataFrame(daily_waves(T), hours(T), ["kW"]).rename_axis("date")
    table.to_csv("load.csv")
    table.drop(hours(T)[50]).to_csv("gap.csv")
    table.reset_index(drop=True).to_csv("bare.csv", index=False)
    table.assign(more=1).to_csv("more.csv")
    (tmp_path / "mixed").mkdir()
    for name in ("load.csv", "bare.csv"):
        (tmp_path / "mixed" / name).write_bytes((tmp_path / name).read_bytes())
    return tmp_path


def test_the_command_predicts_a_file_and_keeps_what_it_learnt(own, capsys):
    options = ["--model", "model", "--horizon", "6"]
    assert main(["forecast", "load.csv", *options, "--context", "30", "-o", "next.csv"]) == 0
    printed = capsys.readouterr().out
    assert "repeat last" in printed and "6 rows from 2024-01-13 12:00:00 to" in printed
    assert "--model model --probe next.safetensors" in printed.splitlines()[-1]
    lines = (own / "next.csv").read_text().splitlines()
    assert lines[0] == "date,kW,kW 10%,kW 50%,kW 90%" and len(lines) == 7
    assert lines[1].startswith("2024-01-13 12:00:00,")
    kept = ["--probe", "next.safetensors"]
    assert main(["forecast", "load.csv", *options, *kept, "-o", "again.csv"]) == 0
    again, first = (pd.read_csv(name, index_col="date") for name in ("again.csv", "next.csv"))
    # on a GPU other batches round otherwise, and a ridge makes much of it
    rtol = 1e-3 if torch.cuda.is_available() else 1e-5
    pd.testing.assert_frame_equal(again, first, rtol=rtol)
    (own / "LOAD.CSV").write_bytes((own / "load.csv").read_bytes())
    assert main(["forecast", "LOAD.CSV", *options, "--context", "30"]) == 0
    assert sorted(p.name for p in own.iterdir() if p.suffix == ".json") == []


@pytest.fixture
def _few_steps(monkeypatch):
    """The encoder that a forecaster trains for itself is trained for a moment."""
    monkeypatch.setattr(own_encoder, "DEFAULTS", (*own_encoder.DEFAULTS, "train.steps=2", *TINY))


def test_the_command_needs_no_setting_and_says_what_it_used_and_why(own, capsys, _few_steps):
    """Two horizons, a picture, and nothing trained before."""
    command = ["forecast", "load.csv", "--horizon", "6", "12"]
    assert main([*command, "-o", "next.csv", "--plot", "next.png"]) == 0
    printed = capsys.readouterr().out
    for way in ("encoder + values", "values alone", "repeat last", "seasonal 24", "80 % interval"):
        assert way in printed
    assert "by the encoder" in printed
    last = printed.splitlines()[-1]
    assert last.startswith("written: next.csv, next.png (18 rows from 2024-01-13 12:00:00")
    assert last.endswith("--horizon 6 12 --probe next.forecaster -o next.csv")
    found = pd.read_csv("next.csv", index_col=["horizon", "date"])
    assert len(found.loc[6]) == 6 and len(found.loc[12]) == 12
    assert (own / "next.png").read_bytes().startswith(b"\x89PNG")
    again = [*command, "--probe", "next.forecaster", "-o", "again.csv", "--quiet"]
    assert main(again) == 0 and capsys.readouterr().out == ""
    later = pd.read_csv("again.csv", index_col=["horizon", "date"])
    pd.testing.assert_frame_equal(later, found, rtol=1e-3)


def test_a_folder_of_files_is_forecast_at_once(own, capsys, _few_steps):
    (own / "meters").mkdir()
    for seed in (0, 1):
        table = pd.DataFrame(daily_waves(T, seed=seed), hours(T), ["kW"]).rename_axis("date")
        table.to_csv(f"meters/{seed}.csv")
    assert main(["forecast", "meters", "--horizon", "3", "-o", "x.csv", "--plot", "x.svg"]) == 0
    found = pd.read_csv("x.csv", dtype={"series": str}, index_col=["series", "date"])
    assert len(found.loc["0"]) == len(found.loc["1"]) == 3
    assert "series-1.safetensors" in [p.name for p in (own / "x.forecaster").iterdir()]
    capsys.readouterr()


def spoilt_table():
    table = pd.DataFrame(daily_waves(T), hours(T), ["kW"]).rename_axis("when")
    table.iloc[40] = -9999
    return pd.concat([table[:90], table[89:100], table[101:]])


MADE = {  # file, how it is written, options of the command
    "semicolons, gaps, duplicates and a sentinel": (
        "x.csv", lambda p: spoilt_table().to_csv(p, sep=";"),
        "--sep ; --time when --missing=-9999 --fill-gaps --drop-duplicates"),
    "parquet": (
        "x.parquet", lambda p: pd.DataFrame(daily_waves(T), hours(T), ["kW"]).to_parquet(p), ""),
    "without dates": ("x.npy", lambda p: np.save(p, daily_waves(T)), ""),
}  # fmt: skip


@pytest.mark.parametrize("file, write, options", MADE.values(), ids=MADE)
def test_the_command_reads_what_all_commands_read(own, capsys, file, write, options, _few_steps):
    if file.endswith("parquet"):
        pytest.importorskip("pyarrow")
    write(own / file)
    command = ["forecast", file, *options.split(), "--horizon", "6", "-o", "next.csv"]
    assert main([*command, "--plot", "next.png"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    found = pd.read_csv("next.csv", index_col=0)
    if file == "x.npy":
        assert found.index.name == "sample" and list(found.index) == [*range(T, T + 6)]
        assert f"(6 rows from sample {T} to {T + 5})" in last
        return
    assert found.index[0] == str(hours(T)[-1] + pd.Timedelta(hours=1))
    assert found["kW"].between(0, 10).all()  # not drawn towards -9999
    again = shlex.split(last.rpartition("progmem ")[2])
    assert main([*again, "--quiet"]) == 0  # the command that it says would come next
    pd.testing.assert_frame_equal(pd.read_csv("next.csv", index_col=0), found, rtol=1e-3)


def test_a_long_table_is_many_series(own, capsys, _few_steps):
    parts = [
        pd.DataFrame(daily_waves(T, seed=seed), hours(T), ["kW"]).assign(case=f"m{seed}")
        for seed in (0, 1)
    ]
    pd.concat(parts).rename_axis("date").to_csv("long.csv")
    assert main(["forecast", "long.csv", "--horizon", "3", "-o", "x.csv"]) == 0
    found = pd.read_csv("x.csv", index_col=["series", "date"])
    assert len(found.loc["m0"]) == len(found.loc["m1"]) == 3
    capsys.readouterr()


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("load.csv --horizon 3 -o x.txt", "-o must name the .csv file to write, got x.txt"),
        ("load.csv --horizon 3 -o no/x.csv", "there is no folder no to write x.csv into"),
        ("load.csv --horizon 3 -o model/../load.csv", "load.csv is what is read, and would"),
        ("mixed --horizon 3 -o mixed/bare.csv", "mixed/bare.csv lies in mixed, whose files are"),
        ("none.csv --horizon 3 0", "horizon must be a whole number from 1 up, got 0"),  # at once
        ("load.csv --horizon 90", "horizon 90 does not fit into the choosing part of the series"),
        ("load.csv --horizon 3 --plot x.gif", "--plot must name a .png, .pdf or .svg file, got"),
        ("model --horizon 3", "model holds no .npy, .npz, .csv, .tsv, .parquet, .ts, "),
        ("bare.csv --horizon 3 --sep ;;", "sep must be one character such as ';', got ';;'"),
        ("load.csv --horizon 3 --probe k --context 9", "--context is chosen when a forecaster is"),
        ("load.csv --horizon 3 --probe k", "--probe needs -o: the .csv file for the predictions"),
        ("load.csv --horizon 3 --probe k -o x.csv", "there is no forecaster in k"),
        ("gap.csv --horizon 3", "gap.csv: dates must be regular: from 2024-01-03 01:00:00"),
        ("mixed --horizon 3", "mixed: bare has no dates, others have; give them all, or none"),
        ("more.csv --horizon 3", "the series has 2 columns; the model has 8 channels"),
        ("none.csv --horizon 3", "there is no none.csv; give a "),
        ("ETTh2 --horizon 3", "give a file of recordings, a folder of them, or one of ETTh1, ETT"),
    ],
)
def test_bad_use_of_the_command_gives_one_line(arguments, message, own, capsys):
    assert main(["forecast", *arguments.split(), "--model", "model"]) == 2
    printed = capsys.readouterr().err
    assert message in printed and printed.count("\n") == 1, printed
    assert len((own / "load.csv").read_text().splitlines()) == T + 1


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("ETTh1 -o x.txt", "-o must name the .json file to write, got x.txt"),
        ("load.csv", "'load.csv' cannot be forecast; known: ETTh1, ETTh1-uni"),
    ],
)
def test_bad_use_of_the_protocol_gives_one_line(arguments, message, own, capsys):
    assert main(["probe", "forecast", "model", *arguments.split()]) == 2
    printed = capsys.readouterr().err
    assert message in printed and printed.count("\n") == 1, printed
