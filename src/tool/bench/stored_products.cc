// SPDX-License-Identifier: Apache-2.0
#include "tool/bench/stored_products.hpp"

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "headgate/runtime.hpp"
#include "models/layers/linear.hpp"
#include "models/layers/stored_matrix.hpp"
#include "tool/bench/job.hpp"

namespace headgate::bench {
namespace {

constexpr std::array<std::string_view, 10> kFormats{"Q8_0", "Q4_0", "Q4_1", "Q5_0",  "Q5_1",
                                                    "Q4_K", "Q5_K", "Q6_K", "MXFP4", "BF16"};
/// Guaranteed share of the memory read rate if x has one row. Only the bytes of the matrix w count as memory traffic.
constexpr double kOneRowFloor = 0.6;
/// Lowest accepted rate for many rows of x, as a share of the rate with the same matrix in bf16.
constexpr double kManyRowsFloor = 0.97;

/// Sizes of the product y(N,O) = x(N,C) wᵀ.
struct ProductShape {
  std::int64_t N, O, C;
};

/// Returns random bytes with bit 2 cleared, so that all f16 and bf16 numbers in them are finite.
/// Bit 2 of the high byte of such a number is an exponent bit. Infinities and NaN have all exponent bits set.
std::vector<std::uint8_t> random_bytes(std::size_t count) {
  constexpr std::uint64_t kFinite = 0xFB;
  std::mt19937_64 random(1);
  std::vector<std::uint8_t> out(count);
  for (std::uint8_t& byte : out) byte = static_cast<std::uint8_t>(random() & kFinite);
  return out;
}

class StoredProductJob : public BenchJob {
 public:
  StoredProductJob(const io::GgufFormat& format, ProductShape shape, int threads)
      : format_(format),
        shape_(shape),
        context_(resolved({.threads = threads})),
        x_(static_cast<std::size_t>(shape.N * shape.C), 1.0F),
        y_(static_cast<std::size_t>(shape.N * shape.O)),
        bytes_(random_bytes(static_cast<std::size_t>(shape.O * shape.C / format.numbers) * format.bytes)),
        w_{{{&format, bytes_.data(), shape.O, shape.C, nullptr}}} {}

  void run() override {
    const View<float, 2> y(y_.data(), {shape_.N, shape_.O});
    const View<const float, 2> x(x_.data(), {shape_.N, shape_.C});
    if (format_.word == "BF16") {  // plain bf16 matrix, for comparison
      const View<const BFloat16, 2> w(reinterpret_cast<const BFloat16*>(bytes_.data()), {shape_.O, shape_.C});
      layers::linear_forward(y, x, w, layers::Update::overwrite, context_);
    } else {
      layers::linear_forward(y, x, w_, layers::Update::overwrite, context_);
    }
  }
  double flops() const override {
    return 2.0 * static_cast<double>(shape_.N) * static_cast<double>(shape_.O) * static_cast<double>(shape_.C);
  }
  double read_bytes() const override { return shape_.N == 1 ? static_cast<double>(bytes_.size()) : 0.0; }
  DType compute_dtype() const override { return DType::f32; }

  nlohmann::ordered_json facts() const override {
    return {{"op", "stored_product"}, {"N", shape_.N}, {"O", shape_.O}, {"C", shape_.C}, {"format", format_.word}};
  }

 private:
  const io::GgufFormat& format_;
  ProductShape shape_;
  ExecutionContext context_;
  std::vector<float> x_, y_;
  std::vector<std::uint8_t> bytes_;
  layers::StoredMatrix w_;
};

BenchCase stored_case(const std::string& name, std::string_view format, ProductShape shape,
                      std::optional<double> floor) {
  const io::GgufFormat& found = *io::find_gguf_format(format);
  return {name, [&found, shape](int threads) { return std::make_unique<StoredProductJob>(found, shape, threads); }, 0,
          floor};
}

}  // namespace

std::vector<BenchGroup> stored_product_groups() {
  std::vector<BenchGroup> groups;
  for (const std::string_view format : kFormats) {
    const std::string name = fmt::format("stored/one-row/{}", format);
    groups.push_back({{stored_case(name, format, {1, 16384, 4096}, kOneRowFloor)}, {}});
  }
  constexpr ProductShape kPrompt{512, 2048, 2048};
  BenchGroup prompt{{stored_case("stored/many-rows/Q4_K", "Q4_K", kPrompt, {}),
                     stored_case("stored/many-rows/Q6_K", "Q6_K", kPrompt, {}),
                     stored_case("stored/many-rows/BF16", "BF16", kPrompt, {})},
                    {{0, 2, kManyRowsFloor}, {1, 2, kManyRowsFloor}}};
  groups.push_back(std::move(prompt));
  return groups;
}

}  // namespace headgate::bench
