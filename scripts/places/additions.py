#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""additions.py [TREE]: adds a made-up gate function, option of attention and metric to TREE, and prints the files that
each one changes. Without TREE, only checks that every place is found in this tree, as `make lint` does.

The anchor of a Place is a regular expression that matches its file exactly once, such as the last row of a table. The
text replaces the match, and \\g<0> in it stands for the match.
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Place:
    file: str
    anchor: str  # a regular expression, which may match several lines; empty for a new file
    text: str


GATE_FUNCTION = [
    Place("docs/reference/training.md", r"(\| `gate_fn` \|.*`identity`, )(`none`)", r"\1`wide_sigmoid`, \2"),
    Place(
        "include/headgate/attention.hpp",
        r"(enum class GateFn\b[^}]*= (\d+))(\n\};)",
        r"\1,\n  wide_sigmoid = 7\3",
    ),
    Place(
        "include/headgate/types.h",
        r"(HEADGATE_GATE_FN_IDENTITY = 6)( .*\n)(\};)",
        r"\1,\2  HEADGATE_GATE_FN_WIDE_SIGMOID = 7\n\3",
    ),
    Place(
        "python/headgate/torch/layer.py",
        r'    "identity": lambda z: z,\n',
        r'\g<0>    "wide_sigmoid": lambda z: torch.sigmoid(0.5 * z),\n',
    ),
    Place(
        "src/library/core/gate_functions-inl.hpp",
        r"(template <>\nstruct Gate<GateFn::identity>[\s\S]*?\n\};\n)",
        r"""\g<0>
template <>
struct Gate<GateFn::wide_sigmoid> : GateRowTraits<GateFn::wide_sigmoid> {
  template <class D, class V>
  static HWY_INLINE V half(D d, V x) {
    return hn::Mul(hn::Set(d, static_cast<hn::TFromD<D>>(0.5)), x);
  }
  template <class D, class V>
  static HWY_INLINE V value(D d, V z) {
    return SigmoidGate::value(d, half(d, z));
  }
  template <class D, class V>
  static HWY_INLINE V derivative(D d, V z) {
    return half(d, SigmoidGate::derivative(d, half(d, z)));
  }
  template <class D, class V>
  static HWY_INLINE V ratio(D d, V z) {
    return half(d, SigmoidGate::ratio(d, half(d, z)));
  }
};
""",
    ),
    Place(
        "src/library/core/gate_functions.hpp",
        r"    GateFunction\{GateFn::identity,.*\n",
        r'\g<0>    GateFunction{GateFn::wide_sigmoid, HEADGATE_GATE_FN_WIDE_SIGMOID, "wide_sigmoid", "σ(z/2)", false},\n',
    ),
    Place(
        "src/verify/oracle/gates.hpp",
        r"    case GateFn::identity:.*\n",
        r"""\g<0>    case GateFn::wide_sigmoid: {
      const R half_z = R{0.5} * z;
      const GateTerms<R> half = gate_terms(GateFn::sigmoid, half_z);
      return {half.value, R{0.5} * half.slope, R{0.5} * *half.ratio};
    }
""",
    ),
]

METRIC = [
    Place(
        "docs/reference/training.md",
        r"\| `gate_below` \|.*\n",
        r"\g<0>| `gate_largest` | `gate_largest` | largest g(z); model: mean over layers; null without a gate |\n",
    ),
    Place(
        "src/models/evaluate/gate_largest.hpp",
        "",
        r"""// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "models/evaluate/mean.hpp"
#include "models/evaluate/metric.hpp"
#include "models/evaluate/per_layer.hpp"

namespace headgate::metrics {

inline constexpr Figure kGateLargest{.key = "gate_largest", .null_without_gate = true, .decimals = 4};

template <typename T>
class GateLargestSums : public Sums<T> {
 public:
  explicit GateLargestSums(const models::DecoderConfig& config) : layers_(config) {}

  void add_layer(const LayerSample<T>& sample) override {
    std::optional<double>& so_far = layers_.at(sample.view.layer);
    const View<const T, 1> gates = sample.gates.flat();
    for (std::int64_t i = 0; i < gates.shape[0]; ++i) {
      const auto g = static_cast<double>(gates(i));
      so_far = so_far && *so_far > g ? *so_far : g;
    }
  }
  Values of_layer(std::int64_t layer) const override { return {layers_.at(layer)}; }

 private:
  PerLayer<std::optional<double>> layers_;
};

inline constexpr Metric kGateLargestMetric{
    .name = "gate_largest",
    .definition = "largest g(z); model: mean over layers; null without a gate",
    .figures = {&kGateLargest, 1},
    .layers = MetricLayers::attention,
    .inputs = {Input::gates},
    .sums = kSumsOf<GateLargestSums>,
};

}  // namespace headgate::metrics
""",
    ),
    Place(
        "src/models/evaluate/registry.cc",
        r'#include "models/evaluate/gate_by_trigger.hpp"\n',
        r'\g<0>#include "models/evaluate/gate_largest.hpp"\n',
    ),
    Place("src/models/evaluate/registry.cc", r"    &kGateBelow,\n", r"\g<0>    &kGateLargestMetric,\n"),
    Place(
        "tests/models/evaluate/plain_metrics.cc",
        r"Values gate_below\(",
        r"""Values gate_largest(const PlainBatches& e, std::size_t layer) {
  std::optional<double> largest;
  for (const models::PlainRun& run : e.runs) {
    for (const double g : run.layers[layer].gates) largest = std::max(largest.value_or(g), g);
  }
  return {largest};
}

\g<0>""",
    ),
    Place(
        "tests/models/evaluate/plain_metrics.cc",
        r'    \{"gate_below", .*\n',
        r'\g<0>    {"gate_largest", gate_largest},\n',
    ),
]

OPTION = [
    Place(
        "include/headgate/attention.hpp",
        r"(struct AttentionOptions \{[\s\S]*?)(\n\};)",
        r"\1\n  double sharpness = 0.0;  ///< scale is multiplied by 1 + sharpness\2",
    ),
    Place(
        "include/headgate/headgate.h",
        r"\} headgate_attention_options;",
        r"  double sharpness; /**< scale is multiplied by 1 + sharpness */\n\g<0>",
    ),
    Place(
        "src/library/attention/problem.cc",
        r"  p\.softcap = options\.softcap;\n",
        r"""  if (!std::isfinite(options.sharpness)) call.fail("sharpness is {} but must be finite", options.sharpness);
  p.scale *= 1.0 + options.sharpness;
\g<0>""",
    ),
    Place(
        "src/library/core/attention_options.hpp",
        r" *option_row\(OptionOf::scores, &O::causality,",
        r"""          option_row(OptionOf::scores, &O::sharpness, &C::sharpness,
                     {"sharpness", "--sharpness", "X", "scale is multiplied by 1 + sharpness"},
                     {.older_end_here = true}),
\g<0>""",
    ),
    Place(
        "src/verify/oracle/oracle.cc",
        r"scale\(options\.scale\.value_or\(.*(?=\),\n)",
        r"\g<0> * (1.0 + options.sharpness)",
    ),
    Place(
        "src/verify/spec.cc",
        r"  if \(maybe\(pick, 4\)\) spec\.softcap = .*\n",
        r"\g<0>  if (maybe(pick, 4)) spec.sharpness = one_of(pick, std::array{0.5, -0.25});\n",
    ),
]

ADDITIONS = {"gate_function": GATE_FUNCTION, "option": OPTION, "metric": METRIC}


def changed(place: Place, text: str) -> str:
    """Returns the file's text with the addition. Exits unless the anchor matches once."""
    found = re.findall(place.anchor, text)
    if len(found) != 1:
        sys.exit(
            f"places: {place.file}: {place.anchor!r} matches {len(found)} times, not once: change it in {__file__}"
        )
    return re.sub(place.anchor, place.text, text)


def main() -> None:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[2]
    for name, places in ADDITIONS.items():
        for place in places:
            path = root / place.file
            if place.anchor:
                text = changed(place, path.read_text(encoding="utf-8"))
            elif path.exists():
                sys.exit(f"places: {place.file} exists already")
            else:
                text = place.text
            if len(sys.argv) > 1:
                path.write_text(text, encoding="utf-8")
        if len(sys.argv) > 1:
            print(f"{name} takes:", *dict.fromkeys(place.file for place in places), sep="\n  ")


if __name__ == "__main__":
    main()
