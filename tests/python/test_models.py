# SPDX-License-Identifier: Apache-2.0
"""Models, worked problems and runs: what the command line says of the same."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import matplotlib
import matplotlib.pyplot
import numpy as np
import pandas
import pytest

import headgate

matplotlib.use("Agg")
from headgate import plot

TOOL = os.environ["HEADGATE_TOOL"]
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def tool(*arguments):
    return subprocess.run([TOOL, *map(str, arguments)], check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Makes a text, and two runs of a few steps."""
    where = tmp_path_factory.mktemp("models")
    (where / "text.txt").write_text("The quick brown fox jumps over the lazy dog. " * 80)
    (where / "runs").mkdir()
    for name, gate in (("gated", "headwise"), ("plain", "none")):
        tool("train", "--data", where / "text.txt", "--out", where / "runs" / name, "--gate", gate, "--layers", 2,
             "--dim", 32, "--heads", 2, "--kv-heads", 1, "--head-dim", 16, "--seq-len", 32,
             "--batch", 2, "--steps", 6, "--eval-every", 3, "--threads", 1)  # fmt: skip
    return where


def test_eval(folder):
    run, text = folder / "runs" / "gated", folder / "text.txt"
    model = headgate.load(run)
    assert (model.layers, model.heads, model.kv_heads, model.dim) == (2, 2, 1, 32) and model.reads_bytes
    found = model.eval(text, heads=True, tokens=1024, seq_len=32, cache_dtype="i8", threads=1)
    expected = json.loads(
        tool("eval", run, "--text", text, "--heads", "--tokens", 1024, "--seq-len", 32, "--cache-dtype", "i8",
             "--threads", 1, "--json")
    )  # fmt: skip
    assert found.figures["cache"]["dtype"] == "i8"
    assert found.tokens == expected["tokens"]
    assert found.figures == {k: v for k, v in expected.items() if k not in ("layers", "tokens", "seq_len")}
    for layer, heads, of in zip(found.layers, found.heads, expected["layers"], strict=True):
        assert {**layer, "heads": heads} == of
    plain = model.eval(text.read_text(), tokens=1024, seq_len=32, threads=1)
    assert plain.figures == {key: value for key, value in found.figures.items() if key != "cache"}
    with pytest.raises(ValueError, match="^cache_dtype: 'f32' is none of i8$"):
        model.eval(text, cache_dtype="f32")
    first = model.eval(text, tokens=1024, seq_len=32, cache_dtype="i8", cache_first=32, threads=1)
    assert first.figures["cache"]["first"] == 32
    assert first.figures["cache"]["kl_nats"] < found.figures["cache"]["kl_nats"], "all tokens are unrounded"
    with pytest.raises(ValueError, match="^cache_first is 4 but cache_dtype is None: only i8 rounds keys and values$"):
        model.eval(text, cache_first=4)
    with pytest.raises(ValueError, match="^cache_first is -1 but must be at least 0$"):
        model.eval(text, cache_dtype="i8", cache_first=-1)
    frame, heads = found.frame(), found.head_frame()
    assert isinstance(frame, pandas.DataFrame) and len(frame) == 2 and heads.index.names == ["layer", "head"]
    assert heads.loc[(1, 0), "first_token_attention"] == found.heads[1][0]["first_token_attention"]


def test_eval_compares_rounded_and_other_models(folder):
    model, other = (headgate.load(folder / "runs" / name) for name in ("gated", "plain"))
    text, options = folder / "text.txt", {"tokens": 1024, "seq_len": 32, "threads": 1}
    found = model.eval(text, activations=["i8-token", "i8-tensor"], against=other, **options).figures
    expected = json.loads(
        tool("eval", model.name, "--text", text, "--activations", "i8-token,i8-tensor", "--against", other.name,
             "--tokens", 1024, "--seq-len", 32, "--threads", 1, "--json")
    )  # fmt: skip
    assert found["activations"] == expected["activations"] and found["against"] == expected["against"]
    with pytest.raises(ValueError, match="^--activations: 'i8' is none of i8-token, i8-tensor, i8-tensor-keep-first$"):
        model.eval(text, activations=["i8"])
    with pytest.raises(TypeError, match="^against is .* but must be a Model, as headgate.load returns$"):
        model.eval(text, against=str(other.name))


def test_xray(folder, tmp_path):
    run, text = folder / "runs" / "gated", folder / "text.txt"
    found = headgate.load(run).xray(text, tokens=24, threads=1)
    tool("xray", run, "--text", text, "--tokens", 24, "--threads", 1, "--json-out", tmp_path / "report.json")
    assert found.report == json.loads((tmp_path / "report.json").read_text())
    assert "".join(found.text) == text.read_text()[:24] and found.token_losses.shape == (24,)
    head = found.heads[1][0]
    assert head.map.shape == (24, 24) and np.allclose(head.map.sum(1), 1, atol=0.1) and not np.triu(head.map, 1).any()
    assert head.gate.shape == (24,) and head.gate_histogram.sum() == 24
    assert set(found.figures) <= set(found.sentences) and len(found.frame()) == 2 and len(found.head_frame()) == 4
    worth = headgate.load(run).xray("The lazy dog.", tokens=8, override="layers", threads=1)
    assert worth.overrides["of"] == "layers"


def test_runs(folder):
    found = headgate.runs(folder / "runs")
    assert [Path(run.name).name for run in found] == ["gated", "plain"]
    lines = (folder / "runs" / "gated" / "metrics.jsonl").read_text().splitlines()
    losses = {record["step"]: record["loss"] for record in map(json.loads, lines) if "loss" in record}
    assert dict(zip(found[0].curves["loss"].steps.tolist(), found[0].curves["loss"].values.tolist())) == losses
    assert found[0].frame().index.name == "step" and found[0].frame()["loss"].dropna().to_dict() == losses


def test_explain():
    path = EXAMPLES / "gated_two_tokens.json"
    found = headgate.explain(path)
    printed = json.loads(tool("explain", "--json", "--decimals", 17, path))
    assert set(found) == set(printed)
    for name, values in printed.items():
        assert np.allclose(found[name], np.array(values), rtol=0, atol=1e-17), name
    q = np.array([[1.0, 0.0], [0.0, 1.0]])
    small = headgate.explain({"Q": q, "K": q, "V": q, "Z": q, "causal": True})
    y = headgate.attention(*(x[None, None] for x in (q, q, q, q)), causality="causal")
    assert np.allclose(small["output"], y[0, 0], atol=1e-15)
    with pytest.raises(ValueError, match="^problem: "):
        headgate.explain({"Q": q, "K": q})


def test_figures(folder):
    model = headgate.load(folder / "runs" / "gated")
    report, evaluation = model.xray("The quick brown fox", threads=1), model.eval(folder / "text.txt", threads=1)
    line = plot.layer_figure(report).get_lines()[0]
    assert line.get_ydata().tolist() == [row["first_token_attention"] for row in report.layer_figures]
    assert len(plot.layer_figure(evaluation, report, key="gate_mean", labels=["eval", "xray"]).get_lines()) == 2
    assert plot.gate_histogram(report, layer=0).get_ylabel() == "share"
    hybrid = dataclasses.replace(report, layer_types=["linear_attention", "full_attention"])
    lines = {patch.get_label(): patch.get_data().values for patch in plot.gate_histogram(hybrid).patches}
    for layer, name in enumerate(("linear attention", "attention")):
        own = np.sum([head.gate_histogram for head in report.heads[layer]], axis=0)
        assert np.array_equal(lines[name], own / own.sum())
    assert plot.head_map(report, 1, 1).images[0].get_array().shape == report.heads[1][1].map.shape
    assert len(plot.curves(*headgate.runs(folder / "runs")).get_lines()) == 2
    with pytest.raises(ValueError, match="^plot: there is no figure 'x'"):
        plot.layer_figure(report, key="x")
    for labels in ("x", [], ["a", "b"]):
        with pytest.raises(ValueError, match="^plot: labels is .* but must be a list of 1 names$"):
            plot.layer_figure(report, labels=labels)
    with pytest.raises(ValueError, match="gate"):
        plot.gate_histogram(headgate.load(folder / "runs" / "plain").xray("The quick", threads=1))


@pytest.mark.parametrize("exponent", range(-30, -4, 5))
def test_explain_keeps_numbers_of_any_size(exponent):
    scale = 10.0**exponent
    Q, K, V = (np.random.default_rng(seed).normal(size=(3, 2)) for seed in range(3))
    problem = {"Q": scale * Q, "K": K, "V": scale * V, "Z": Q}
    found = headgate.explain(problem)
    scores = problem["Q"] @ K.T
    weights = np.exp(scores / np.sqrt(2))
    weights /= weights.sum(-1, keepdims=True)
    attention, gate = weights @ problem["V"], 1 / (1 + np.exp(-Q))
    expected = {"Q": problem["Q"], "K": K, "V": problem["V"], "scores": scores, "weights": weights,
                "attention": attention, "gate": gate, "output": gate * attention}  # fmt: skip
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert found[name].dtype == np.float64
        np.testing.assert_allclose(found[name], values, rtol=1e-12, atol=0, err_msg=name)
    for name in ("Q", "K", "V"):
        assert np.array_equal(found[name], expected[name])


def test_head_frame_without_heads_is_empty(folder):
    model = headgate.load(folder / "runs" / "gated")
    for options in ({}, {"metrics": ["loss"], "heads": True}):
        frame = model.eval(folder / "text.txt", threads=1, tokens=1024, seq_len=32, **options).head_frame()
        assert len(frame.columns) == 0 or len(frame) == 0
        assert frame.index.names == ["layer", "head"]


def test_figures_refuse_wrong_arguments_by_name(folder):
    model, (run, _) = headgate.load(folder / "runs" / "gated"), headgate.runs(folder / "runs")
    x, evaluation = model.xray("The quick", threads=1), model.eval(folder / "text.txt", tokens=1024, threads=1)
    opened = len(matplotlib.pyplot.get_fignums())
    wrong = {
        plot.layer_figure: [
            ((run,), {}, r"reports\[0\] is a Run "), ((x, [x]), {}, r"reports\[1\] is a list "), ((), {}, "reports is empty "),
            ((None,), {}, r"reports\[0\] is None "), ((x,), {"labels": 3}, "labels is 3 "), ((x,), {"key": 3}, "key is a int "),
            ((x,), {"key": []}, "key is a list "), ((x,), {"axes": 3}, "axes is a int "),
        ],
        plot.curves: [
            (([run],), {}, r"runs\[0\] is a list "), ((x,), {}, r"runs\[0\] is a Xray "), ((), {}, "runs is empty "),
            ((run,), {"key": []}, "key is a list "), ((run,), {"key": "x"}, ".* has no curve 'x'"),
            ((run,), {"axes": "a"}, "axes is a str "),
        ],
        plot.gate_histogram: [
            ((evaluation,), {}, "report is a Evaluation "), ((None,), {}, "report is None "), ((x,), {"axes": []}, "axes is a list "),
            *(((x, layer), {}, f"layer is {layer!r} but must be a whole number from 0 to 1$") for layer in (99, "0", -1, 1.0)),
        ],
        plot.head_map: [
            ((evaluation, 0, 0), {}, "report is a Evaluation "), ((x, 0, 0), {"axes": 3}, "axes is a int "),
            *(((x, n, 0), {}, f"layer is {n!r} but must be a whole number from 0 to 1$") for n in (99, -1, True, None)),
            *(((x, 0, n), {}, f"head is {n!r} but must be a whole number from 0 to 1$") for n in (2, -1, "1", 0.5)),
        ],
    }  # fmt: skip
    for function, calls in wrong.items():
        for arguments, options, said in calls:
            with pytest.raises((TypeError, ValueError), match=f"^plot: {said}"):
                function(*arguments, **options)
    assert len(matplotlib.pyplot.get_fignums()) == opened
    assert plot.head_map(x, np.int64(1), np.int64(0)).get_title() == "layer 1, head 0"
    assert len(plot.layer_figure(x, labels=np.array(["a"])).get_lines()) == 1


def test_xray_has_the_verdict_of_the_command_line(folder):
    report = headgate.load(folder / "runs" / "gated").xray("The quick brown fox", threads=1)
    assert report.verdict == report.report["models"][0]["verdict"]
    assert report.verdict.startswith("No sinks: ") and "The largest activation is " in report.verdict


def test_page_joins_objects_dicts_and_texts(folder, tmp_path):
    plain, gated = (headgate.load(folder / "runs" / name).xray("The quick", threads=1) for name in ("plain", "gated"))
    page = headgate.page([plain, gated.report, json.dumps(gated.report)])
    start = '<script id="report" type="application/json">'
    report = json.loads(page.html.split(start)[1].split("</script>")[0])
    assert [model["name"] for model in report["models"]] == [plain.name, gated.name, f"{gated.name} (2)"]
    page.save(tmp_path / "three.html")
    plain.save(tmp_path / "one.html")
    assert (tmp_path / "three.html").read_text(encoding="utf-8") == page.html
    assert (tmp_path / "one.html").read_text(encoding="utf-8") == headgate.page([plain.report]).html


def test_page_of_no_reports_is_refused(folder):
    report = headgate.load(folder / "runs" / "plain").xray("The quick", threads=1).report
    unread = "not a report that this headgate reads"
    for reports, error, said in (
        ([], ValueError, "^reports is empty$"),
        ("{}", TypeError, "^reports is a str but must be a list of reports$"),
        (None, TypeError, "^reports is None but must be a list of reports$"),
        ([report, 3], TypeError, r"^reports\[1\] is a int but must be an Xray, a dict or JSON text$"),
        ([report, "{}"], ValueError, rf"^reports\[1\]: {unread}: the JSON lacks version$"),
        ([report | {"version": 9}], ValueError, rf"^reports\[0\]: {unread}: version is 9 but must be 1$"),
    ):
        with pytest.raises(error, match=said):
            headgate.page(reports)


def parts_of(value, place=""):
    """Yields the place and the container and key of each value in a report, one of each list."""
    keys = value.keys() if isinstance(value, dict) else range(min(1, len(value)))
    for key in list(keys):
        at = f"{place}.{key}" if isinstance(value, dict) else f"{place}[{key}]"
        yield at, value, key
        if isinstance(value[key], (dict, list)):
            yield from parts_of(value[key], at)


def test_page_names_values_that_are_not_of_json(folder):
    report = headgate.load(folder / "runs" / "gated").xray("The quick", override="heads", threads=1).report
    odd = (np.float32(1), np.int64(1), np.arange(3), np.array("a"), np.nan, -np.inf, b"x", {1}, object(), 1j)
    places = list(parts_of(report))
    assert len(places) > 100 and ".models[0].heads[0][0].top_keys[0][0]" in [place for place, *_ in places]
    for place, container, key in places:
        for value in odd:
            before, container[key] = container[key], value
            with pytest.raises(ValueError) as caught:
                headgate.page([report, report])
            container[key] = before
            said = str(caught.value)
            assert said.startswith(f"reports[0]{place} is ") and f"({type(value).__name__})" in said, said
            assert "\n" not in said
    assert headgate.page([report]).html
    with pytest.raises(ValueError, match=r"^a key of reports\[0\]\.models\[0\] is 3 \(int\) but must be "):
        headgate.page([report | {"models": [{3: 1}]}])
    report["models"][0]["self"] = report
    with pytest.raises(ValueError, match=r"^reports\[1\] is nested too deeply, or contains itself$"):
        headgate.page(["{}", report])


def test_load_of_a_module_names_its_function():
    torch = pytest.importorskip("torch")
    said = r"^path is a Linear, a module of PyTorch, but must be a path: headgate.torch.xray\(model, tokenizer, text\) and "
    with pytest.raises(TypeError, match=said + r"headgate.torch.watch\(model\) look into modules$"):
        headgate.load(torch.nn.Linear(2, 2))


def test_eval_reads_all_of_a_text_where_asked(folder):
    model = headgate.load(folder / "runs" / "gated")
    text = "The gate closes. " * 4500  # 76500 bytes
    some, every = (model.eval(text, tokens=tokens, metrics=["loss"], threads=1) for tokens in (None, "all"))
    assert some.tokens <= 65536 < every.tokens <= len(text)
    assert some.seq_len == every.seq_len


def test_figures_of_layers_steps_and_cells_have_whole_ticks(folder):
    report = headgate.load(folder / "runs" / "gated").xray("The quick", threads=1, map_cells=3)
    drawn = plot.layer_figure(report), plot.head_map(report, 1, 1), plot.curves(*headgate.runs(folder / "runs"))
    axes = [drawn[0].xaxis, drawn[1].xaxis, drawn[1].yaxis, drawn[2].xaxis]
    assert all(tick == round(tick) for axis in axes for tick in axis.get_majorticklocs())


def test_errors(folder, tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        headgate.load(tmp_path / "nothing")
    assert str(caught.value).startswith(str(tmp_path / "nothing")) and "\n" not in str(caught.value)
    with pytest.raises(FileNotFoundError, match="`hf download a/b`"):
        headgate.load("a/b")
    for read in (headgate.explain, headgate.runs, headgate.load(folder / "runs" / "gated").eval):
        with pytest.raises(FileNotFoundError, match="nothing: "):
            read(tmp_path / "nothing")
    with pytest.raises(ValueError, match=r"a\\x00b: the path contains a NUL byte"):
        headgate.load("a\0b")
    model = headgate.load(folder / "runs" / "gated")
    with pytest.raises(ValueError, match="'no_metric'"):
        model.eval("text " * 50, metrics=["no_metric"])
    with pytest.raises(TypeError, match="^text is a int but must be a str or a pathlib.Path$"):
        model.eval(5)


def test_messages_do_not_show_temporary_files(folder):
    model = headgate.load(folder / "runs" / "gated")
    with pytest.raises(ValueError, match="^text is empty$"):
        model.eval("")
    with pytest.raises(ValueError) as caught:
        model.xray("a")
    assert "/tmp" not in str(caught.value) and "\n" not in str(caught.value), caught.value
    for bad in (dict(tokens="x"), dict(metrics=5), dict(metrics="loss"), dict(heads=3), dict(threads="2")):
        name = next(iter(bad))
        with pytest.raises(TypeError, match=f"^eval: {name} is .* but must be [^\n]*$"):
            model.eval("text " * 50, **bad)
    with pytest.raises(ValueError, match="^xray: threads is 0 but must be 1 to "):
        model.xray("text " * 50, threads=0)
    assert model.xray("text " * 50).report["text"] == "text"
    for call, bad in ((model.eval, "tokens"), (model.xray, "tokens"), (model.xray, "override_tokens")):
        with pytest.raises(ValueError, match=f"^{bad} is -3 but must be at least 1$"):
            call("text " * 50, **{bad: -3})
    for cells in (0, 1025):
        with pytest.raises(ValueError, match=f"map_cells is {cells} but must be from 1 to 1024$"):
            model.xray("text " * 50, map_cells=cells)


def test_reprs_fit_three_lines(folder):
    model = headgate.load(folder / "runs" / "gated")
    xray = model.xray("The quick brown fox", threads=1)
    run = headgate.runs(folder / "runs")[0]
    evaluation = model.eval(folder / "text.txt", heads=True, threads=1)
    for each in (model, evaluation, xray, xray.heads[0][0], run, run.curves["loss"]):
        assert len(repr(each)) <= 240 and "\n" not in repr(each), each
    assert repr(evaluation).startswith(f"Evaluation({evaluation.tokens} tokens, 2 layers; loss_nats ")
    assert "gate g1-headwise-sigmoid-mul, 18 tokens, 2 layers of 2 heads" in repr(xray)
    assert repr(run.curves["loss"]).startswith("Curve(6 steps: ") and "step 6" in repr(run)


def test_openmp_threads_after_products_are_as_before(folder):
    code = (
        "import ctypes, sys, headgate\n"
        "model = headgate.load(sys.argv[1])\n"
        "openmp = ctypes.CDLL('libgomp.so.1')\n"
        "before = openmp.omp_get_max_threads()\n"
        "model.eval('text ' * 50, threads=1)\n"
        "assert openmp.omp_get_max_threads() == before == 2, before\n"
    )
    environment = dict(os.environ, OMP_NUM_THREADS="2")
    assert subprocess.run([sys.executable, "-c", code, folder / "runs" / "gated"], env=environment).returncode == 0
