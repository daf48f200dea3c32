// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "models/data/prose.hpp"
#include "models/io/npy.hpp"
#include "models/io/scratch.hpp"
#include "tool/cli/tool.hpp"

namespace headgate::testing {

/// Makes a directory with a text, and runs `headgate train` with sizes that take no time.
class TrainVerb {
 public:
  TrainVerb() { write_bytes(text(), prose(4000)); }

  std::string text() const { return scratch_ / "text"; }
  std::string path(const std::string& name) const { return scratch_ / name; }

  /// Returns the command line of a fresh run in `run`.
  std::vector<std::string> command(const std::string& run, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> out = {"train", "--data",    text(), "--out",   path(run), "--layers",
                                    "2",     "--dim",     "16",   "--heads", "2",       "--seq-len",
                                    "16",    "--batch",   "2",    "--steps", "20",      "--eval-tokens",
                                    "64",    "--threads", "2"};
    out.insert(out.end(), more.begin(), more.end());
    return out;
  }
  Outcome train(const std::string& run, const std::vector<std::string>& more = {}) const {
    return headgate(command(run, more));
  }
  Outcome resume(const std::string& run, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all = {"train", "--resume", "--out", path(run)};
    all.insert(all.end(), more.begin(), more.end());
    return headgate(all);
  }
  Outcome eval(const std::string& run, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all = {"eval", path(run), "--text", text()};
    all.insert(all.end(), more.begin(), more.end());
    return headgate(all);
  }
  std::string checkpoint_file(const std::string& run, const std::string& name) const {
    return read_bytes(path(run) + "/checkpoint/" + name);
  }
  /// Writes token ids of 4 or 8 bytes, and returns the path of their file.
  template <class Id>
  std::string write_ids(const std::vector<Id>& ids) const {
    const io::Array array = io::make_array(sizeof(Id) == 4 ? DType::i32 : DType::i64, {std::ssize(ids)});
    std::memcpy(array.data.get(), ids.data(), ids.size() * sizeof(Id));
    io::NpyWriter writer;
    writer.add(path("ids.npy"), array);
    writer.commit();
    return path("ids.npy");
  }

 private:
  Scratch scratch_;
};

}  // namespace headgate::testing
