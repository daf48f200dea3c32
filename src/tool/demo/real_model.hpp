// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
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

/// Shows the X-ray of a given model: its figures, what they say about a sink, and a page. Throws Error, io::FileError
/// and io::WriteError.
void show_real_model(const std::string& model, const XrayRequest& wanted);

/// Shows the X-rays of the models trained on text, side by side, on the beginning of their held-out text. Throws
/// io::FileError and io::WriteError.
void show_trained_models(const std::vector<TrainedModel>& trained, const XrayRequest& wanted);

/// Returns one or two sentences on a model's attention to the first token, from its figures.
std::string sink_verdict(const std::string& name, const metrics::FigureRow& figures);

/// Returns a sentence on how many directions heads write in. `models`: names, each with the mean of their heads'
/// effective ranks.
std::string rank_sentence(const std::vector<std::pair<std::string, double>>& models);

}  // namespace headgate::demo
