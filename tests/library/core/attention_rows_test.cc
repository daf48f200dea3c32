// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstddef>
#include <set>
#include <string>
#include <string_view>
#include <tuple>

#include "library/core/attention_options.hpp"
#include "library/core/attention_tensors.hpp"
#include "library/core/count_fields.hpp"

namespace headgate {
namespace {

template <class Struct, typename Member>
const void* address(const Struct& object, Member Struct::*member) {
  return &(object.*member);
}

/// Row n is that of member n of both structs: rows whose members have been confused are in another order.
template <class C, class Rows>
void expect_order_of_structs(const Rows& rows) {
  const typename Rows::value_type::Struct cpp{};
  const C c{};
  std::set<std::string_view> names;
  for (std::size_t n = 0; n < rows.size(); ++n) {
    names.insert(rows[n].name);
    if (n == 0) continue;
    EXPECT_LT(address(cpp, rows[n - 1].member), address(cpp, rows[n].member)) << rows[n].name;
    EXPECT_LT(address(c, rows[n - 1].c_member), address(c, rows[n].c_member)) << rows[n].name;
  }
  EXPECT_EQ(names.size(), rows.size());
}

TEST(AttentionTensors, Rows_AreInTheOrderOfBothStructs) {
  expect_order_of_structs<headgate_attention_inputs>(kAttentionInputs);
  expect_order_of_structs<headgate_attention_outputs>(kAttentionOutputs);
  expect_order_of_structs<headgate_attention_saved>(kSavedTensors);
  expect_order_of_structs<headgate_attention_incoming>(kIncomingTensors);
  expect_order_of_structs<headgate_attention_gradients>(kAttentionGradients);
}

TEST(AttentionTensors, Gradient_IsNamedAfterItsInput) {
  for (const AttentionGradient& row : kAttentionGradients) {
    EXPECT_EQ(std::string(row.name), std::string("d") + input_of_gradient(row).name);
  }
}

TEST(AttentionTensors, RequiredInputs_StandFirst) {
  bool required = true;
  for (const AttentionInput& row : kAttentionInputs) {
    EXPECT_LE(row.traits.required, required) << row.name;
    required = row.traits.required;
  }
}

TEST(AttentionOptions, Rows_AreAllMembersOnce) {
  AttentionOptions options;
  const headgate_attention_options c{};
  std::set<const void*> members, c_members;
  std::set<std::string_view> names;
  std::size_t rows = 0, of_context = 0;
  for_each_row(kAttentionOptions, [&](const auto& row) {
    members.insert(&row.of(options));
    c_members.insert(address(c, row.c_member));
    names.insert(row.text.name);
    if (row.part == OptionOf::execution) ++of_context;
    ++rows;
  });
  EXPECT_EQ(members.size(), rows);
  EXPECT_EQ(c_members.size(), rows);
  EXPECT_EQ(names.size(), rows);
  // `context` is one field of the options; its `cancelled` is for C++ alone.
  EXPECT_EQ(rows - of_context + 1, testing::count_fields<AttentionOptions>());
  EXPECT_EQ(of_context + 1, testing::count_fields<ExecutionContext>());
  // struct_size, has_scale, has_window and reserved are no options.
  EXPECT_EQ(rows + 4, testing::count_fields<headgate_attention_options>());
}

}  // namespace
}  // namespace headgate
