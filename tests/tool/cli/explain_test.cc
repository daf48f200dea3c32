// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "models/io/scratch.hpp"
#include "tool/cli/tool.hpp"

namespace headgate {
namespace {

using headgate::testing::expect_refused;
using headgate::testing::Outcome;
using headgate::testing::Scratch;
using headgate::testing::write_bytes;
using Json = nlohmann::json;
using Rows = std::vector<std::vector<double>>;

std::string example(const std::string& name) { return std::string(HEADGATE_EXAMPLES) + "/" + name + ".json"; }

class ExplainTest : public ::testing::Test {
 protected:
  Outcome explain(const std::string& problem, std::vector<std::string> options = {}) {
    write_bytes(file, problem);
    options.insert(options.begin(), {"explain", file});
    return testing::headgate(options);
  }

  Json solved(const std::string& problem, int decimals = 4) {
    const Outcome outcome = explain(problem, {"--json", "--decimals", std::to_string(decimals)});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return Json::parse(outcome.out);
  }

  void refuse(const std::string& problem, const std::string& reason) {
    const Outcome outcome = explain(problem);
    expect_refused(outcome, "explain", reason);
    EXPECT_NE(outcome.err.find(file), std::string::npos) << outcome.err;
  }

  Scratch scratch;
  const std::string file = scratch / "problem.json";
};

Json solved_example(const std::string& name, int decimals) {
  const Outcome outcome =
      testing::headgate({"explain", "--json", "--decimals", std::to_string(decimals), example(name)});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  return Json::parse(outcome.out);
}

// Compares with the answers that the problems were published with, to 4 decimals.
TEST(WorkedProblems, Explain_TwoTokensAndAHalfOpenGate_PrintsTheSteps) {
  const Json solution = solved_example("gated_two_tokens", 4);
  EXPECT_EQ(solution["output"], Json(Rows{{0.3349, 0.1651}, {0.1651, 0.3349}}));
  EXPECT_EQ(solution["gate"], Json(Rows{{0.5, 0.5}, {0.5, 0.5}}));
  EXPECT_EQ(solution["scores"], Json(Rows{{1, 0}, {0, 1}}));
  EXPECT_EQ(solution["weights"], Json(Rows{{0.6698, 0.3302}, {0.3302, 0.6698}}));
}

TEST(WorkedProblems, Explain_TwoMixedTokens_PrintsTheSteps) {
  const Json solution = solved_example("gated_two_mixed_tokens", 4);
  EXPECT_EQ(solution["output"], Json(Rows{{0.5644, 0.4531}, {0.4531, 0.5644}}));
}

TEST(WorkedProblems, Explain_ThreeTokens_PrintsTheSteps) {
  const Json solution = solved_example("gated_three_tokens", 4);
  EXPECT_EQ(solution["output"],
            Json(Rows{{0.2355, 0.1322, 0.1322}, {0.1322, 0.2355, 0.1322}, {0.1322, 0.1322, 0.2355}}));
}

// Published in float32: each number is within one unit of its last place.
TEST(WorkedProblems, Explain_ScaledDotProduct_PrintsTheSteps) {
  const Json solution = solved_example("scaled_dot_product", 12);
  const Rows weights = {{0.73105854, 0.26894143}, {0.26894143, 0.73105854}};
  const Rows output = {{2.0757656, 3.0757656, 4.0757656, 5.0757656}, {3.9242342, 4.924234, 5.924234, 6.924234}};
  const auto expect_close = [](const Json& actual, const Rows& expected) {
    ASSERT_EQ(actual.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(actual[i].size(), expected[i].size());
      for (std::size_t j = 0; j < expected[i].size(); ++j) {
        const auto published = static_cast<float>(expected[i][j]);
        const float unit = std::nextafterf(published, HUGE_VALF) - published;
        EXPECT_NEAR(actual[i][j].get<double>(), published, unit);
      }
    }
  };
  expect_close(solution["weights"], weights);
  expect_close(solution["output"], output);
  EXPECT_EQ(solution["attention"], solution["output"]);
  EXPECT_FALSE(solution.contains("gate"));
}

TEST(WorkedProblems, Explain_ProblemsOfTheDocument_ReadAsWrittenByHand) {
  const Outcome outcome = testing::headgate({"explain", example("gated_two_mixed_tokens")});
  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(outcome.err, "");
  std::size_t at = 0;
  for (const char* part : {"Step 1. Projections",
                           "Q = X · W_q",
                           "K = X · W_k",
                           "V = X · W_v",
                           "Step 2. Scores",
                           "scores = Q · Kᵀ",
                           "[ 1.2500  1.0000 ]",
                           "Step 3. Scaled scores",
                           "/ √2",
                           "[ 0.8839  0.7071 ]",
                           "Step 4. Attention weights",
                           "[ 0.5441  0.4559 ]",
                           "Step 5. Attention output",
                           "[ 0.7720  0.7280 ]",
                           "Step 6. Gate",
                           "Z = X · W_g",
                           "G = sigmoid(Z)",
                           "[ 0.7311  0.6225 ]",
                           "Step 7. Gated output",
                           "output = G ∘ attention",
                           "[ 0.5644  0.4531 ]\n    [ 0.4531  0.5644 ]\n"}) {
    const std::size_t next = outcome.out.find(part, at);
    ASSERT_NE(next, std::string::npos) << part << " in:\n" << outcome.out;
    at = next;
  }
}

TEST_F(ExplainTest, Json_AnyProblem_HoldsTheKeysThatApplyInOrder) {
  const auto keys = [](const std::string& text) {
    std::vector<std::string> found;
    const auto object = nlohmann::ordered_json::parse(text);
    for (const auto& item : object.items()) found.push_back(item.key());
    return found;
  };
  const std::string q = R"({"Q": [[1]], "K": [[1]], "V": [[2]])";
  EXPECT_EQ(keys(explain(q + "}", {"--json"}).out),
            (std::vector<std::string>{"Q", "K", "V", "scores", "weights", "attention", "output"}));
  EXPECT_EQ(keys(explain(q + R"(, "Z": [[0]]})", {"--json"}).out),
            (std::vector<std::string>{"Q", "K", "V", "scores", "weights", "attention", "gate", "output"}));
}

TEST_F(ExplainTest, Numbers_DecimalsGiven_AreRounded) {
  const std::string problem = R"({"Q": [[1]], "K": [[0.123456789]], "V": [[-0.00001]]})";
  EXPECT_EQ(solved(problem, 4)["K"][0][0], 0.1235);
  EXPECT_EQ(solved(problem, 0)["K"][0][0], 0.0);
  EXPECT_EQ(solved(problem, 17)["K"][0][0], 0.123456789);
  EXPECT_EQ(explain(problem, {"--json"}).out.find("-0"), std::string::npos);
  EXPECT_EQ(explain(problem).out.find("-0.0000"), std::string::npos);
  EXPECT_NE(explain(problem, {"--decimals", "5"}).out.find("[ -0.00001 ]"), std::string::npos);
  for (const char* bad : {"-1", "18", "four", ""}) {
    expect_refused(explain(problem, {"--decimals", bad}), "explain", "--decimals");
  }
}

TEST_F(ExplainTest, Causal_LaterKeys_AreHidden) {
  const std::string problem = R"({"Q": [[1], [1]], "K": [[1], [2], [3]], "V": [[10], [20], [30]], "causal": true})";
  const Json solution = solved(problem);
  EXPECT_EQ(solution["weights"][0][2], 0.0);  // query 0 is aligned with key 1
  EXPECT_NE(solution["weights"][1][2], 0.0);
  EXPECT_EQ(solution["scores"], Json(Rows{{1, 2, 3}, {1, 2, 3}}));
  EXPECT_NE(explain(problem).out.find("-inf"), std::string::npos);
}

TEST_F(ExplainTest, Gate_EachFunction_IsApplied) {
  const auto gate = [this](const std::string& fn) {
    return solved(R"({"Q": [[1]], "K": [[1]], "V": [[3]], "Z": [[0.5]], "gate_fn": ")" + fn + "\"}", 12);
  };
  const double sigma = 1 / (1 + std::exp(-0.5));
  const std::vector<std::pair<std::string, double>> expected = {
      {"sigmoid", sigma},  {"sigmoid2", 2 * sigma}, {"ns_sigmoid", 0.5 + sigma / 2},
      {"silu", sigma / 2}, {"identity", 0.5},       {"softplus", std::log1p(std::exp(0.5))}};
  for (const auto& [fn, value] : expected) {
    const Json solution = gate(fn);
    EXPECT_NEAR(solution["gate"][0][0].get<double>(), value, 1e-12) << fn;  // rounded to 12 decimals
    EXPECT_NEAR(solution["output"][0][0].get<double>(), 3 * value, 1e-12) << fn;
  }
  EXPECT_FALSE(gate("none").contains("gate"));
  EXPECT_EQ(gate("none")["output"][0][0], 3.0);
}

TEST_F(ExplainTest, GroupedHeads_WithProjection_ShareKeysAndProjectTheOutput) {
  // Two query heads share a key head; there is one token, so attention is V for any scores.
  const std::string problem = R"({"X": [[1, 2]], "W_q": [[1, 0], [0, 1]], "W_k": [[1], [0]], "W_v": [[0, 1], [1, 0]],
      "W_g": [[0, 9], [0, 9]], "W_o": [[1], [10], [100], [1000]], "heads": 2, "kv_heads": 1, "gate_grain": "headwise",
      "gate_fn": "identity"})";
  const Json solution = solved(problem);
  EXPECT_EQ(solution["V"], Json(Rows{{2, 1}}));
  EXPECT_EQ(solution["scores"], Json::parse("[[[1.0]], [[2.0]]]"));
  EXPECT_EQ(solution["weights"], Json::parse("[[[1.0]], [[1.0]]]"));
  EXPECT_EQ(solution["attention"], Json(Rows{{2, 1, 2, 1}}));
  EXPECT_EQ(solution["gate"], Json(Rows{{0, 27}}));
  EXPECT_EQ(solution["output"], Json(Rows{{27 * (200 + 1000)}}));
  const std::string text = explain(problem).out;
  for (const char* part : {"Scores, head 0", "Scores, head 1", "Heads side by side", "output = gated · W_o"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part;
  }
}

TEST_F(ExplainTest, File_NoProblem_IsRefused) {
  expect_refused(testing::headgate({"explain"}), "explain", "FILE.json is required");
  expect_refused(testing::headgate({"explain", scratch / "absent.json"}), "explain", "No such file");
  expect_refused(testing::headgate({"explain", scratch.path()}), "explain", "is a directory, not a file");
  refuse("", "not JSON");
  refuse("{", "not JSON");
  refuse("[1, 2]", "not a JSON object");
  refuse("{}", "neither \"X\" nor \"Q\"");
  refuse(R"({"Q": [[1]], "K": [[1]]})", "\"V\" is missing");
  refuse(R"({"X": [[1]], "W_q": [[1]], "W_k": [[1]], "W_v": [[1]]})", "\"W_g\" is missing");
  refuse(R"({"Q": [[1]], "K": [[1]], "V": [[1]], "W_g": [[1]]})", "unknown key \"W_g\"");
  refuse(R"({"Q": [[1]], "K": [[1]], "V": [[1]], "X": [[1]]})", "unknown key \"K\"");
  refuse(R"({"Q": [[1]], "K": [[1]], "V": [[1]], "gate_fn": "silu"})",
         "gate_fn is of a gate, whose logits \"Z\" are missing");
  refuse(R"({"Q": [[1]], "K": [[1]], "V": [[1]], "gate_grain": "headwise"})",
         "gate_grain is of a gate, whose logits \"Z\" are missing");
  refuse(R"({"Q": [[1]], "Q": [[2]], "K": [[1]], "V": [[1]]})", "duplicate key 'Q'");
  refuse(std::string(1 << 20, '['), "nested");
  refuse(R"({"Q": [[1]], "K": [[1]], "V": [[1]]} {})", "not JSON");
  refuse("{\"Q\": \"\xFF\xFE\"}", "not JSON");
}

TEST_F(ExplainTest, Problem_FromAPipe_IsRead) {
  write_bytes(file, R"({"Q": [[1]], "K": [[1]], "V": [[2]]})");
  const Outcome outcome = testing::run_program(
      {"/bin/sh", "-c", "cat " + file + " | " + testing::headgate_path() + " explain --json /dev/stdin"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(Json::parse(outcome.out)["output"], Json(Rows{{2}}));
}

TEST_F(ExplainTest, Matrix_Bad_IsRefused) {
  const auto with_q = [](const std::string& q) { return R"({"Q": )" + q + R"(, "K": [[1, 2]], "V": [[1]]})"; };
  refuse(with_q("1"), "Q is not a matrix");
  refuse(with_q("[]"), "Q is not a matrix");
  refuse(with_q("{}"), "Q is not a matrix");
  refuse(with_q("[1, 2]"), "Q row 0 is not an array");
  refuse(with_q("[[]]"), "Q row 0 is not an array");
  refuse(with_q("[[1, 2], [3]]"), "Q row 1 has 1 numbers, row 0 has 2");
  refuse(with_q("[[1, \"2\"]]"), "Q row 0 column 1 is not a number");
  refuse(with_q("[[1, true]]"), "Q row 0 column 1 is not a number");
  refuse(with_q("[[1, null]]"), "Q row 0 column 1 is not a number");
  refuse(with_q("[[1, [2]]]"), "nested");
  refuse(with_q("[[1, NaN]]"), "not JSON");
  refuse(with_q("[[1, Infinity]]"), "not JSON");
  refuse(with_q("[[1, 1e999]]"), "not JSON");
  std::string long_row = "[[0";
  for (int i = 0; i < 1024; ++i) long_row += ",0";
  refuse(with_q(long_row + "]]"), "at most 1024");
}

TEST_F(ExplainTest, Sizes_Disagree_AreRefused) {
  refuse(R"({"Q": [[1, 2]], "K": [[1]], "V": [[1]]})", "K has 1 columns, but Q has 2");
  refuse(R"({"Q": [[1]], "K": [[1]], "V": [[1], [2]]})", "K is (1,1), but V is (2,1)");
  refuse(R"({"Q": [[1]], "K": [[1]], "V": [[1]], "Z": [[1, 2]]})",
         "Z is (1,2), but a gate that is elementwise needs (1,1)");
  refuse(R"({"Q": [[1]], "K": [[1]], "V": [[1]], "W_o": [[1], [2]]})", "W_o is (2,1)");
  refuse(R"({"Q": [[1, 2, 3]], "K": [[1]], "V": [[1]], "heads": 2})", "Q has 3 columns, which 2 heads do not divide");
  refuse(R"({"Q": [[1, 2]], "K": [[1]], "V": [[1]], "heads": 2, "kv_heads": 3})",
         "heads is 2, not a multiple of kv_heads, 3");
  refuse(R"({"X": [[1, 2]], "W_q": [[1]], "W_k": [[1], [1]], "W_v": [[1], [1]], "W_g": [[1], [1]]})",
         "W_q is (1,1), but X is (1,2)");
  refuse(R"({"X": [[1]], "W_q": [[1]], "W_k": [[1]], "W_v": [[1, 2]], "W_g": [[1]]})",
         "W_g is (1,1), but a gate that is elementwise needs 2 columns");
}

TEST_F(ExplainTest, Options_Bad_AreRefused) {
  const auto with = [](const std::string& option) { return R"({"Q": [[1]], "K": [[1]], "V": [[1]], )" + option + "}"; };
  for (const char* heads : {"0", "-1", "1.5", "\"2\"", "65", "18446744073709551615", "null", "[2]"}) {
    refuse(with(R"("heads": )" + std::string(heads)), "heads is");
  }
  refuse(with(R"("causal": 1)"), "causal is neither true nor false");
  refuse(with(R"("gate_fn": "relu")"), "gate_fn is \"relu\", not one of sigmoid, ");
  refuse(with(R"("gate_fn": 1)"), "gate_fn is not a string");
  refuse(with(R"("gate_grain": "perhaps")"), "gate_grain is \"perhaps\"");
  refuse(with(R"("extra": 1)"), "unknown key \"extra\"");
  refuse(with("\"a\\u001b\\nb\": 1"), "unknown key");
}

TEST_F(ExplainTest, Numbers_Overflow_AreRefused) {
  expect_refused(explain(R"({"Q": [[1e200]], "K": [[1e200]], "V": [[1]]})"), "explain", "scores overflows");
  expect_refused(explain(R"({"X": [[1e200]], "W_q": [[1e200]], "W_k": [[1]], "W_v": [[1]], "W_g": [[1]]})"), "explain",
                 "Q overflows");
}

TEST_F(ExplainTest, File_Damaged_IsReadOrRefused) {
  const std::string whole = testing::read_bytes(example("gated_two_tokens"));
  std::mt19937 random(2505);  // NOLINT: the same damage in every run
  for (int round = 0; round < 60; ++round) {
    std::string text = whole;
    if (round % 2 == 0) text.resize(random() % text.size());
    for (auto n = random() % 3; n > 0 && !text.empty(); --n) text[random() % text.size()] = static_cast<char>(random());
    const Outcome outcome = explain(text);
    ASSERT_TRUE(outcome.status == 0 || outcome.status == 2) << outcome.status << ' ' << text;
    if (outcome.status == 2) expect_refused(outcome, "explain", "");
  }
}

}  // namespace
}  // namespace headgate
