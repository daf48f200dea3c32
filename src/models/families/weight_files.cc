// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "models/families/model_file.hpp"
#include "models/io/exists.hpp"
#include "models/io/input_file.hpp"
#include "models/io/json.hpp"
#include "models/io/mxfp4.hpp"
#include "models/io/npy.hpp"
#include "models/io/safetensors.hpp"

namespace headgate::models {
namespace {

using io::fail;
using io::printable;
using io::printable_name;

constexpr const char* kModel = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr std::size_t kMaxIndex = std::size_t{1} << 25;
constexpr std::size_t kMaxShards = 1024;
// Suffixes of the two byte tensors that store a tensor NAME in MXFP4: NAME_blocks (…,G,16) and NAME_scales (…,G), with
// G blocks per row.
constexpr std::string_view kBlocks = "_blocks", kScales = "_scales";

/// Returns whether `name` names a .safetensors file inside the directory. Rejects '/', which could lead to another
/// directory, and NUL, which would end the name early.
bool is_shard_name(std::string_view name) {
  return name.ends_with(".safetensors") && name.find_first_of(std::string_view("/\0", 2)) == std::string_view::npos;
}

/// Reads model.safetensors, or the shards that an index lists.
class SafetensorsWeights : public WeightFiles {
 public:
  explicit SafetensorsWeights(const std::string& directory) {
    const std::string whole = directory + "/" + kModel, index = directory + "/" + kIndex;
    if (io::exists(whole) || !io::exists(index)) {
      path_ = whole;
      add(whole);
    } else {
      path_ = index;
      add_shards(directory);
    }
    join_blocks();
  }

  const std::string& path() const override { return path_; }
  std::vector<std::string> names() const override {
    std::vector<std::string> out;
    for (const auto& [name, place] : places_) out.push_back(name);
    return out;
  }
  const std::vector<std::int64_t>* shape(const std::string& name) const override {
    const auto found = places_.find(name);
    if (found == places_.end()) return nullptr;
    return found->second.scales == nullptr ? &found->second.entry->shape : &found->second.shape;
  }
  const std::string& path_of(const std::string& name) const override { return places_.at(name).file->path(); }
  void read(const std::string& name, float* out) const override {
    const Place& place = places_.at(name);
    if (place.scales == nullptr) return place.file->read_f32(*place.entry, out);
    const StoredTensor tensor = stored(name);
    for (std::int64_t b = 0; b < tensor.numel / io::kMxfp4Numbers; ++b) {
      io::widen_mxfp4_apart(out + b * io::kMxfp4Numbers, tensor.data + b * io::kMxfp4CodeBytes, tensor.scales[b]);
    }
  }
  void verify() const override {
    for (const auto& file : files_) file->verify_checksum();
  }
  bool stores_narrow_matrices() const override {
    return std::any_of(places_.begin(), places_.end(), [](const auto& item) { return item.second.scales != nullptr; });
  }
  StoredTensor stored(const std::string& name) const override {
    const Place& place = places_.at(name);
    StoredTensor out{format_of(place), place.file->mapped(*place.entry), nullptr, 0};
    const auto blocks = static_cast<std::int64_t>(place.entry->bytes / out.format->bytes);
    out.numel = blocks * out.format->numbers;
    if (place.scales != nullptr) out.scales = place.scales_file->mapped(*place.scales);
    if (!checked_.insert(name).second) return out;
    check_whole();
    const std::int64_t bad = out.scales == nullptr ? out.format->find_not_finite(out.data, blocks)
                                                   : io::find_infinite_mxfp4_apart(out.data, out.scales, blocks);
    if (bad == blocks) return out;
    fail(place.file->path(), "tensor '{}': a number of block {} of {} is not finite", printable_name(name), bad,
         out.format->word);
  }
  void check_whole() const override {
    for (const auto& file : files_) file->check_whole();
  }

 private:
  struct Place {
    const io::SafetensorsReader* file;
    const io::TensorEntry* entry;
    // Location of the scales, and shape of the decoded tensor. Set for MXFP4 tensors only.
    const io::SafetensorsReader* scales_file = nullptr;
    const io::TensorEntry* scales = nullptr;
    std::vector<std::int64_t> shape = {};
  };

  /// Returns the format of a tensor's numbers. Throws if the numbers cannot be converted to f32.
  static const io::GgufFormat* format_of(const Place& place) {
    if (place.scales != nullptr) return &io::mxfp4_apart();
    switch (place.entry->dtype) {
      case DType::f32: return io::find_gguf_format("F32");
      case DType::f16: return io::find_gguf_format("F16");
      case DType::bf16: return io::find_gguf_format("BF16");
      default: break;
    }
    fail(place.file->path(), "tensor '{}' is not F32, F16 or BF16", printable_name(place.entry->name));
  }

  /// Combines each tensor of MXFP4 blocks with its scales, which may be in another shard. Removes the scales from the
  /// list of tensors.
  void join_blocks() {
    for (auto& [name, place] : places_) {
      if (place.entry->dtype != DType::none || !name.ends_with(kBlocks)) continue;
      const std::string scales = name.substr(0, name.size() - kBlocks.size()) + std::string(kScales);
      const auto found = places_.find(scales);
      if (found == places_.end())
        fail(place.file->path(), "tensor '{}' has no '{}'", printable_name(name), printable_name(scales));
      join(place, found->second);
    }
    for (auto at = places_.begin(); at != places_.end();) {
      const auto blocks =
          at->first.ends_with(kScales)
              ? places_.find(at->first.substr(0, at->first.size() - kScales.size()) + std::string(kBlocks))
              : places_.end();
      at = blocks != places_.end() && blocks->second.scales == at->second.entry ? places_.erase(at) : std::next(at);
    }
  }

  static void join(Place& place, const Place& scales) {
    std::vector<std::int64_t> shape = place.entry->shape;
    const bool blocks = shape.size() >= 2 && shape.back() == io::kMxfp4CodeBytes;
    if (!blocks) {
      fail(place.file->path(), "tensor '{}' is {}, but blocks of MXFP4 have {} bytes",
           printable_name(place.entry->name), io::shape_text(shape), io::kMxfp4CodeBytes);
    }
    shape.pop_back();
    if (scales.entry->dtype != DType::none || scales.entry->shape != shape) {
      fail(scales.file->path(), "tensor '{}' is {}, but '{}' makes it {} of U8", printable_name(scales.entry->name),
           io::shape_text(scales.entry->shape), printable_name(place.entry->name), io::shape_text(shape));
    }
    shape.back() *= io::kMxfp4Numbers;
    place.scales_file = scales.file;
    place.scales = scales.entry;
    place.shape = std::move(shape);
  }

  const io::SafetensorsReader& add(const std::string& path) {
    files_.push_back(std::make_unique<io::SafetensorsReader>(path));
    const io::SafetensorsReader& file = *files_.back();
    for (const io::TensorEntry& entry : file.tensors()) {
      const bool added = places_.emplace(entry.name, Place{&file, &entry}).second;
      if (!added) fail(path, "tensor '{}' is in another shard too", printable_name(entry.name));
    }
    return file;
  }

  /// Opens the shards listed in the index: {"metadata": …, "weight_map": {"TENSOR": "FILE", …}}.
  void add_shards(const std::string& directory) {
    const io::Json index = io::parse_json(path_, io::read_text(path_, kMaxIndex), 4);
    const auto map = index.is_object() ? index.find("weight_map") : index.end();
    if (map == index.end() || !map->is_object()) fail(path_, "no weight_map");
    std::map<std::string, const io::SafetensorsReader*> shards;
    for (const auto& item : map->items()) {
      const std::string shown = printable(item.key());
      if (!item.value().is_string()) fail(path_, "the file of '{}' is not a string", shown);
      const std::string& name = item.value().get_ref<const std::string&>();
      if (!is_shard_name(name)) {
        fail(path_, "the file of '{}' is '{}', not the name of a .safetensors file in this directory", shown,
             printable_name(name));
      }
      const auto [shard, first] = shards.emplace(name, nullptr);
      if (shards.size() > kMaxShards) fail(path_, "more than {} files", kMaxShards);
      if (first) shard->second = &add(fmt::format("{}/{}", directory, name));
      if (shard->second->find(item.key()) == nullptr) fail(shard->second->path(), "tensor '{}' is missing", shown);
    }
  }

  std::string path_;
  std::vector<std::unique_ptr<io::SafetensorsReader>> files_;
  std::map<std::string, Place> places_;
  mutable std::set<std::string> checked_;  // names of mapped tensors in which all numbers are known to be finite
};

class GgufWeights : public WeightFiles {
 public:
  explicit GgufWeights(std::shared_ptr<const io::GgufFile> file) : file_(std::move(file)) {}

  const std::string& path() const override { return file_->path(); }
  std::vector<std::string> names() const override {
    std::vector<std::string> out;
    for (const io::GgufTensor& tensor : file_->tensors()) out.push_back(tensor.name);
    return out;
  }
  const std::vector<std::int64_t>* shape(const std::string& name) const override {
    const io::GgufTensor* tensor = file_->find(name);
    return tensor == nullptr ? nullptr : &tensor->shape;
  }
  const std::string& path_of(const std::string& name) const override { return file_->find(name)->file->path(); }
  void read(const std::string& name, float* out) const override { file_->read_f32(*file_->find(name), out); }
  bool stores_narrow_matrices() const override {
    const auto& tensors = file_->tensors();
    return std::any_of(tensors.begin(), tensors.end(), [](const io::GgufTensor& tensor) {
      return tensor.shape.size() > 1 && tensor.format->word != "F32";
    });
  }
  StoredTensor stored(const std::string& name) const override {
    const io::GgufTensor& tensor = *file_->find(name);
    if (checked_.insert(name).second) file_->check_numbers(tensor);
    return {tensor.format, tensor.data, nullptr, tensor.numel()};
  }
  void check_whole() const override { file_->check_whole(); }

 private:
  std::shared_ptr<const io::GgufFile> file_;
  mutable std::set<std::string> checked_;  // names of tensors in which all numbers are known to be finite
};

}  // namespace

std::shared_ptr<const WeightFiles> open_safetensors(const std::string& directory) {
  return std::make_shared<SafetensorsWeights>(directory);
}

std::shared_ptr<const WeightFiles> open_gguf(std::shared_ptr<const io::GgufFile> file) {
  return std::make_shared<GgufWeights>(std::move(file));
}

}  // namespace headgate::models
