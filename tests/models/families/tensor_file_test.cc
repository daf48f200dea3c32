// SPDX-License-Identifier: Apache-2.0
#include "models/families/tensor_file.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "library/core/convert.hpp"
#include "models/families/saved_model.hpp"
#include "models/io/safetensors.hpp"
#include "models/io/scratch.hpp"

namespace headgate::models {
namespace {

using headgate::testing::SavedModel;
using headgate::testing::Scratch;
using headgate::testing::small_config;

class TensorFileTest : public ::testing::Test {
 protected:
  /// Returns the model's tensors, for tests to change before they are written.
  std::vector<io::TensorSource> sources() const {
    std::vector<io::TensorSource> out;
    for (const Parameter& p : model.table.entries()) {
      out.push_back({p.name, DType::f32, p.shape, model.parameters.data() + p.offset});
    }
    return out;
  }

  void expect_refused(const std::vector<io::TensorSource>& tensors, const std::string& why,
                      StoredAs stored = StoredAs::any_float) {
    io::write_safetensors(path, tensors);
    try {
      read_tensors(path, model.table, {""}, stored);
      ADD_FAILURE() << "read without complaint, not: " << why;
    } catch (const io::FileError& error) {
      const std::string what = error.what();
      EXPECT_TRUE(what.starts_with(path + ": ")) << what;
      EXPECT_NE(what.find(why), std::string::npos) << what << "\nlacks: " << why;
    }
  }

  SavedModel model{small_config()};
  Scratch scratch;
  std::string path = scratch / "model.safetensors";
};

TEST_F(TensorFileTest, Tensors_WrittenAndRead_AreBitwiseIdentical) {
  write_tensors(path, model.table, {{"", model.parameters.data()}});
  EXPECT_EQ(read_tensors(path, model.table, {""}, StoredAs::f32).at(0), model.parameters);
  write_tensors(path, model.table, {{".a", model.first.data()}, {".b", model.second.data()}});
  const auto moments = read_tensors(path, model.table, {".b", ".a"}, StoredAs::f32);
  EXPECT_EQ(moments.at(0), model.second);
  EXPECT_EQ(moments.at(1), model.first);
}

TEST_F(TensorFileTest, Tensors_Written_HaveNamesAndShapesOfHuggingFace) {
  write_tensors(path, model.table, {{"", model.parameters.data()}});
  const io::SafetensorsReader file(path);
  const auto shape = [&file](const char* name) {
    const io::TensorEntry* entry = file.find(name);
    return entry == nullptr ? std::vector<std::int64_t>{-1} : entry->shape;
  };
  using Shape = std::vector<std::int64_t>;
  EXPECT_EQ(file.tensors().size(), 2U + 2 * 11);
  EXPECT_EQ(shape("model.embed_tokens.weight"), (Shape{13, 8}));
  EXPECT_EQ(shape("model.layers.1.self_attn.q_proj.weight"), (Shape{16, 8}));
  EXPECT_EQ(shape("model.layers.1.self_attn.k_proj.weight"), (Shape{8, 8}));
  EXPECT_EQ(shape("model.layers.0.self_attn.o_proj.weight"), (Shape{8, 16}));
  EXPECT_EQ(shape("model.layers.0.self_attn.q_norm.weight"), (Shape{4}));
  EXPECT_EQ(shape("model.layers.0.mlp.down_proj.weight"), (Shape{8, 12}));
  EXPECT_EQ(shape("model.norm.weight"), (Shape{8}));
}

TEST_F(TensorFileTest, Tensor_Missing_IsNamed) {
  auto tensors = sources();
  tensors.erase(tensors.begin() + 3);
  expect_refused(tensors, "tensor '" + model.table.entries()[3].name + "' is missing");
  expect_refused({}, "is missing");
}

TEST_F(TensorFileTest, Tensor_Unknown_IsNamed) {
  auto tensors = sources();
  tensors.push_back(tensors[0]);
  tensors.back().name = "model.layers.2.mlp.up_proj.weight";
  expect_refused(tensors, "tensor 'model.layers.2.mlp.up_proj.weight' is not one of the model's");
}

TEST_F(TensorFileTest, Tensor_OtherShape_IsNamed) {
  auto tensors = sources();
  ASSERT_EQ(tensors[0].shape, (std::vector<std::int64_t>{13, 8}));
  tensors[0].shape = {8, 13};
  expect_refused(tensors, "'model.embed_tokens.weight' is (8, 13), but the model's config makes it (13, 8)");
  tensors[0].shape = {104};
  expect_refused(tensors, "is (104,), but");
  tensors[0].shape = {13, 8, 1};
  expect_refused(tensors, "is (13, 8, 1), but");
  tensors[0].shape = {12, 8};
  expect_refused(tensors, "is (12, 8), but");
}

TEST_F(TensorFileTest, Tensor_NarrowFloatsInACheckpointOrOtherDType_IsRefused) {
  std::vector<std::vector<BFloat16>> narrow;
  auto tensors = sources();
  for (io::TensorSource& tensor : tensors) {
    std::size_t count = 1;
    for (const std::int64_t n : tensor.shape) count *= static_cast<std::size_t>(n);
    std::vector<BFloat16>& values = narrow.emplace_back();
    for (std::size_t i = 0; i < count; ++i) values.push_back(to_bf16(static_cast<const float*>(tensor.data)[i]));
    tensor.dtype = DType::bf16;
    tensor.data = values.data();
  }
  io::write_safetensors(path, tensors);
  const auto back = read_tensors(path, model.table, {""}, StoredAs::any_float).at(0);
  for (std::size_t i = 0; i < back.size(); ++i) EXPECT_EQ(back[i], to_f32(to_bf16(model.parameters[i])));
  expect_refused(tensors, "'model.embed_tokens.weight' is of dtype bf16, not f32", StoredAs::f32);

  const std::vector<double> wide(104);
  tensors = sources();
  tensors[0].dtype = DType::f64;
  tensors[0].data = wide.data();
  expect_refused(tensors, "is of dtype f64, not f32, f16 or bf16");
}

TEST_F(TensorFileTest, Tensor_NumberNotFinite_IsNamed) {
  model.parameters[5] = NAN;
  expect_refused(sources(), "'model.embed_tokens.weight': element 5 is nan");
}

/// A config may claim a model of several TiB. Nothing may be allocated before the file is known to hold it.
TEST_F(TensorFileTest, Model_FarLargerThanItsFile_IsRefusedWithoutAllocating) {
  write_tensors(path, model.table, {{"", model.parameters.data()}});
  DecoderConfig huge = small_config();
  huge.vocab = 1 << 20;
  huge.dim = 1 << 18;
  EXPECT_THROW(read_tensors(path, ParameterTable(huge), {""}, StoredAs::any_float), io::FileError);
}

}  // namespace
}  // namespace headgate::models
