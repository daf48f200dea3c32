// SPDX-License-Identifier: Apache-2.0
#include "python/headgate/operation_rows.hpp"

#include "library/core/format.hpp"

namespace headgate::python {
namespace {

constexpr const char* kLayout = "layout";

}  // namespace

Layout take_layout(const Keywords& keywords) {
  if (keywords.take(kLayout).is_none()) return Layout::bhtd;
  const std::string word = keywords.take(kLayout, "a word", std::string(word_of(Layout::bhtd)));
  return parse_word<Layout>(formatted("{}: {}", keywords.function(), kLayout), word);
}

std::string float_text(double value) {
  const std::string text = formatted("{}", value);
  return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;
}

ArgumentText layout_text(std::string_view arrays) {
  return {kLayout, literal_of(list_words<Layout>()), formatted("'{}'", word_of(Layout::bhtd)),
          formatted("the order of the dimensions of {} and their gradients: {}", arrays, list_words<Layout>())};
}

}  // namespace headgate::python
