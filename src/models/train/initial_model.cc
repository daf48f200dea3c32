// SPDX-License-Identifier: Apache-2.0
#include "models/train/initial_model.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "library/core/check.hpp"
#include "models/decoder/parameters.hpp"
#include "models/io/file_error.hpp"

namespace headgate::train {
namespace {

/// Calls work() and converts its io::FileError to an Error about --init.
template <class Work>
auto checked_init(const Work& work) {
  try {
    return work();
  } catch (const io::FileError& error) {
    throw Error(fmt::format("--init: {}", error.what()));
  }
}

}  // namespace

InitialModel::InitialModel(const std::string& path)
    : file_(checked_init([&] { return models::ModelFile(model_path(path)); })),
      about_(checked_init([&] { return describe_model(path, file_); })) {
  const std::string reason = models::reason_not_trained(config());
  require(reason.empty(), "--init {} cannot be trained: {}", path, reason);
  checked_init([this] { file_.check_tensors(); });
}

std::vector<float> InitialModel::parameters(const models::DecoderConfig& config) const {
  const models::ParameterTable table(config);
  std::vector<float> out(static_cast<std::size_t>(table.total()));
  checked_init([&] {
    file_.read_each([&](const models::Parameter& parameter, const float* numbers) {
      std::copy_n(numbers, parameter.count, out.data() + table.find(parameter.name)->offset);
    });
  });
  return out;
}

}  // namespace headgate::train
