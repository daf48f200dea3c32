// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tool/demo/comparison.hpp"

namespace headgate::demo {

/// Where the X-rays of the demo look, and where their pages go.
struct XrayWanted {
  std::string text;                    ///< a file or directory
  std::vector<std::string> include{};  ///< which files of a directory, as TrainSettings::include
  std::string directory{};             ///< of the pages; empty: none are written
  int threads = 1;
};

/// The pages that the demo writes to `directory`; none for "".
std::vector<std::string> page_paths(const std::string& directory);

/// Makes the directory of the pages, if there is one. Throws Error where pages cannot be written to it.
void prepare_pages(const XrayWanted& wanted);

/// The X-ray of a model that others trained: its figures, what they say of a sink, and a page. Throws Error,
/// io::FileError and io::WriteError.
void show_real_model(const std::string& model, const XrayWanted& wanted);

/// The X-rays of models trained on text, side by side, on the beginning of what their training held out. Throws
/// io::FileError and io::WriteError.
void show_trained_models(const std::vector<TrainedModel>& trained, const XrayWanted& wanted);

/// One or two sentences on a model's attention to the first token, from its figures.
std::string sink_verdict(const std::string& name, const metrics::FigureRow& figures);

/// A sentence on how many directions heads write in: models by name, and the mean of their heads' effective ranks.
std::string rank_sentence(const std::vector<std::pair<std::string, double>>& models);

}  // namespace headgate::demo
