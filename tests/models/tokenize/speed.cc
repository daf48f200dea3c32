// SPDX-License-Identifier: Apache-2.0
// tokenize_speed MODEL FILE: measures how fast a model's tokenizer loads and encodes a text, five times.

#include <fmt/format.h>

#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <exception>
#include <string>

#include "models/io/input_file.hpp"
#include "models/tokenize/open.hpp"

namespace {

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

void measure(const std::string& model, const std::string& file) {
  const double begin = seconds();
  const auto tokenizer = headgate::tokenize::open_tokenizer(model);
  fmt::print("loaded in {:.3f} s\n", seconds() - begin);
  const std::string text = headgate::io::read_text(file, std::size_t{1} << 30);
  for (int run = 0; run < 5; ++run) {
    const double start = seconds();
    const std::size_t ids = tokenizer->encode(text).ids.size();
    const double rate = 1e-6 * static_cast<double>(text.size()) / (seconds() - start);
    fmt::print("{} bytes, {} ids: {:.1f} MB/s\n", text.size(), ids, rate);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    fmt::print(stderr, "usage: tokenize_speed MODEL FILE\n");
    return EXIT_FAILURE;
  }
  try {
    measure(argv[1], argv[2]);
    return EXIT_SUCCESS;
  } catch (const std::exception& error) {
    fmt::print(stderr, "tokenize_speed: {}\n", error.what());
    return EXIT_FAILURE;
  }
}
