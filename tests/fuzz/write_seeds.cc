// SPDX-License-Identifier: Apache-2.0
// write_seeds DIR: writes the seeds of each parser to DIR/TARGET/N, and its words to DIR/TARGET.dict, for libFuzzer.

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <string>

#include "fuzz/targets.hpp"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: write_seeds DIR\n");
    return EXIT_FAILURE;
  }
  for (const auto& target : headgate::fuzz::targets()) {
    const std::filesystem::path folder = std::filesystem::path(argv[1]) / target.name;
    std::filesystem::create_directories(folder);
    int number = 0;
    for (const std::string& seed : target.seeds()) {
      std::ofstream(folder / std::to_string(number++), std::ios::binary) << seed;
    }
    std::ofstream dictionary(folder.string() + ".dict");
    for (const std::string& word : target.words) {
      dictionary << '"';
      for (const char c : word) {
        const auto byte = static_cast<unsigned char>(c);
        if (byte < 0x20 || byte > 0x7E) {
          dictionary << "\\x" << std::hex << std::setw(2) << std::setfill('0') << unsigned{byte};
        } else {
          dictionary << (c == '"' || c == '\\' ? "\\" : "") << c;
        }
      }
      dictionary << "\"\n";
    }
  }
  return EXIT_SUCCESS;
}
