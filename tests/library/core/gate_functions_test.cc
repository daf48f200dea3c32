// SPDX-License-Identifier: Apache-2.0
#include "library/core/gate_functions.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string_view>

#include "verify/oracle/gates.hpp"

namespace headgate {
namespace {

TEST(GateFunctions, Row_ByFunctionOrWord_IsFound) {
  std::set<std::string_view> words, formulas;
  for (const GateFunction& row : kGateFunctions) {
    EXPECT_EQ(&gate_function(row.value), &row) << row.word;
    EXPECT_EQ(word_of(row.value), row.word);
    EXPECT_EQ(find_word<GateFn>(row.word), row.value);
    words.insert(row.word);
    formulas.insert(row.formula);
  }
  EXPECT_EQ(words.size(), kGateFunctions.size());
  EXPECT_EQ(formulas.size(), kGateFunctions.size());
}

TEST(GateFunctions, None_AmongTheWords_HasNoRow) {
  EXPECT_EQ(gate_row(GateFn::none), kGateFunctions.size());
  EXPECT_EQ(find_word<GateFn>("none"), GateFn::none);
  EXPECT_EQ(gate_row(static_cast<GateFn>(1000)), kGateFunctions.size());
  EXPECT_FALSE(find_word<GateFn>("no_such_function").has_value());
}

// The oracle has every function, and agrees about where o is lost: it has no ratio there, and g is 0 at 0 for each such
// function.
TEST(GateFunctions, Oracle_EachFunction_KnowsWhetherItHasAZero) {
  for (const GateFunction& row : kGateFunctions) {
    const auto at_zero = reference::gate_terms(row.value, 0.0), at_one = reference::gate_terms(row.value, 1.0);
    EXPECT_NE(at_one.slope, 0.0) << row.word << " is not in the oracle";
    EXPECT_EQ(at_one.ratio.has_value(), !row.has_zero) << row.word;
    EXPECT_EQ(at_zero.value == 0.0, row.has_zero) << row.word;
  }
}

TEST(GateFunctions, Output_MultipliedByZero_IsLost) {
  EXPECT_TRUE(loses_output(GateFn::silu, GateOp::mul));
  EXPECT_FALSE(loses_output(GateFn::silu, GateOp::add));
  EXPECT_FALSE(loses_output(GateFn::sigmoid, GateOp::mul));
  EXPECT_FALSE(loses_output(GateFn::none, GateOp::mul));
}

TEST(GateFunctions, Output_AddedOrNeverZero_IsKept) {
  EXPECT_TRUE(keeps_output(GateFn::silu, GateOp::mul, DType::f32));
  EXPECT_TRUE(keeps_output(GateFn::sigmoid, GateOp::add, DType::f32));
  EXPECT_FALSE(keeps_output(GateFn::sigmoid, GateOp::mul, DType::f32));
  EXPECT_FALSE(keeps_output(GateFn::none, GateOp::add, DType::f32));
}

TEST(GateFunctions, Output_InF16_IsKept) {
  for (const GateFunction& row : kGateFunctions) EXPECT_TRUE(keeps_output(row.value, GateOp::mul, DType::f16));
  EXPECT_FALSE(keeps_output(GateFn::none, GateOp::mul, DType::f16));
  EXPECT_FALSE(keeps_output(GateFn::sigmoid, GateOp::mul, DType::bf16));
}

TEST(Words, Option_HyphenForUnderscore_IsAccepted) {
  EXPECT_EQ(find_word<GateFn>("ns-sigmoid"), GateFn::ns_sigmoid);
  EXPECT_EQ(find_word<GateFn>("ns_sigmoid"), GateFn::ns_sigmoid);
  EXPECT_FALSE(find_word<GateFn>("ns sigmoid").has_value());
}

TEST(Words, UnknownWord_Refused_ListsTheKnownOnes) {
  EXPECT_EQ(parse_word<GateOp>("gate_op", "add"), GateOp::add);
  try {
    parse_word<GateOp>("gate_op", "max");
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "gate_op: 'max' is none of mul, add");
  }
}

}  // namespace
}  // namespace headgate
