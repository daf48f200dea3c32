// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "models/tokenize/bpe.hpp"
#include "models/tokenize/vocabulary.hpp"

namespace headgate::tokenize {

/// Returns the merges of SentencePiece's BPE, which has no list of them: two neighbours become any token that they
/// spell together, the one of the highest score first. All merges into one token have the same rank. `scores`: of each
/// id; NaN for tokens that are neither merged nor the result of a merge. The merges stand by rank; those of equal rank
/// with the longer left side first. Throws TokenizerError for tokens that are too long.
std::vector<RankedMerge> merges_by_score(const Vocabulary& vocabulary, const std::vector<double>& scores);

}  // namespace headgate::tokenize
