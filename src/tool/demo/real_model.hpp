// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tool/demo/comparison.hpp"

namespace headgate::demo {

/// Which text the demo's X-rays read, and where their pages are written.
struct XrayRequest {
  std::string text;                    ///< path of a file or directory
  std::vector<std::string> include{};  ///< files of a directory to read, as TrainSettings::include
  std::string directory{};             ///< directory of the pages; empty: none are written
  int threads = 1;
};

/// Returns the pages that the demo writes to `directory`; none for "".
std::vector<std::string> page_paths(const std::string& directory);

/// Makes the directory of the pages, if one is given. Throws Error if pages cannot be written to it.
void prepare_pages(const XrayRequest& wanted);

/// Shows the X-ray of a given model: its verdict on sinks, its figures, and where its HTML page is. Throws Error,
/// io::FileError and io::WriteError.
void show_real_model(const std::string& model, const XrayRequest& wanted);

/// Shows the X-rays of models that were trained with `settings`, side by side, on one sequence of their task. Throws
/// io::FileError and io::WriteError.
void show_trained_models(const std::vector<TrainedModel>& trained, const train::TrainSettings& settings,
                         const XrayRequest& wanted);

}  // namespace headgate::demo
