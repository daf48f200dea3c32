// SPDX-License-Identifier: Apache-2.0
#include "models/families/tensor_file.hpp"

#include <set>
#include <string_view>

#include "models/io/npy.hpp"
#include "models/io/safetensors.hpp"

namespace headgate::models {
namespace {

using io::fail;
using io::SafetensorsReader;
using io::TensorEntry;

const TensorEntry& fitting_entry(const SafetensorsReader& file, const std::string& name, const Parameter& parameter,
                                 StoredAs stored) {
  const TensorEntry* entry = file.find(name);
  if (entry == nullptr) fail(file.path(), "tensor '{}' is missing", name);
  if (entry->shape != parameter.shape) {
    fail(file.path(), "tensor '{}' is {}, but the model's config makes it {}", name, io::shape_text(entry->shape),
         io::shape_text(parameter.shape));
  }
  const bool narrow = entry->dtype == DType::f16 || entry->dtype == DType::bf16;
  if (entry->dtype != DType::f32 && !(narrow && stored == StoredAs::any_float)) {
    fail(file.path(), "tensor '{}' is of dtype {}, not {}", name, dtype_name(entry->dtype),
         stored == StoredAs::f32 ? "f32" : "f32, f16 or bf16");
  }
  return *entry;
}

}  // namespace

void write_tensors(const std::string& path, const ParameterTable& table, const std::vector<FlatBuffer>& buffers) {
  std::vector<io::TensorSource> tensors;
  for (const FlatBuffer& buffer : buffers) {
    for (const Parameter& parameter : table.entries()) {
      tensors.push_back(
          {parameter.name + buffer.suffix, DType::f32, parameter.shape, buffer.values + parameter.offset});
    }
  }
  io::write_safetensors(path, tensors);
}

std::vector<std::vector<float>> read_tensors(const std::string& path, const ParameterTable& table,
                                             const std::vector<std::string>& suffixes, StoredAs stored) {
  const SafetensorsReader file(path);
  // The tensors of all parameters with the first suffix, in the order of the table, then those with the next suffix.
  std::vector<const TensorEntry*> wanted;
  std::set<std::string_view> names;
  for (const std::string& suffix : suffixes) {
    for (const Parameter& parameter : table.entries()) {
      wanted.push_back(&fitting_entry(file, parameter.name + suffix, parameter, stored));
      names.insert(wanted.back()->name);
    }
  }
  for (const TensorEntry& entry : file.tensors()) {
    if (!names.contains(entry.name)) fail(path, "tensor '{}' is not one of the model's", io::printable(entry.name));
  }
  file.verify_checksum();
  std::vector<std::vector<float>> buffers;
  auto next = wanted.begin();
  for (std::size_t i = 0; i < suffixes.size(); ++i) {
    std::vector<float>& buffer = buffers.emplace_back(static_cast<std::size_t>(table.total()));
    for (const Parameter& parameter : table.entries()) file.read_f32(**next++, buffer.data() + parameter.offset);
  }
  return buffers;
}

}  // namespace headgate::models
