// SPDX-License-Identifier: Apache-2.0
#include "models/evaluate/evaluation.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace headgate::train {
namespace {

TEST(FirstNotFinite, FirstNotFinite_FiguresOfLayersAndHeads_IsNamed) {
  constexpr metrics::Figure kFigure{.key = "figure"};
  metrics::Report report;
  report.layers.resize(2);
  report.heads.assign(2, std::vector<metrics::FigureRow>(3));
  report.heads[1][2].set(kFigure, 1.0);
  report.layers[1].set(kFigure, 1.0);
  EXPECT_EQ(first_not_finite(report), "");
  report.heads[1][2].set(kFigure, std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(first_not_finite(report), "in layer 1");
  report.layers[0].set(kFigure, std::numeric_limits<double>::infinity());
  EXPECT_EQ(first_not_finite(report), "in layer 0");
  report.heads.clear();
  EXPECT_EQ(first_not_finite(report), "in layer 0");
}

}  // namespace
}  // namespace headgate::train
