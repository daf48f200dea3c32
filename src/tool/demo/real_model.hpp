// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tool/demo/comparison.hpp"

namespace headgate::demo {

/// Selects the text that models read in the demo's X-rays, and the directory of the HTML pages.
struct XrayRequest {
  std::string text;                    ///< path of the text: a file or a directory
  std::vector<std::string> include{};  ///< selects the files of a directory to read, as TrainSettings::include does
  std::string directory{};             ///< directory of the pages; empty: none are written
  int threads = 1;
};

/// Returns the paths of the HTML pages that the demo writes to `directory`. Returns none if `directory` is empty.
std::vector<std::string> page_paths(const std::string& directory);

/// Creates the directory of the HTML pages, if one is given. Throws Error if pages cannot be written to it.
void prepare_pages(const XrayRequest& wanted);

/// Prints the X-ray of the model in the file or directory `model`: its verdict on sinks, its figures, and the path of
/// its HTML page. Throws Error, io::FileError and io::WriteError.
void show_real_model(const std::string& model, const XrayRequest& wanted);

/// Prints the X-rays of models that were trained with `settings`, side by side, on one sequence of their task. Throws
/// io::FileError and io::WriteError.
void show_trained_models(const std::vector<TrainedModel>& trained, const train::TrainSettings& settings,
                         const XrayRequest& wanted);

}  // namespace headgate::demo
