// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "models/tokenize/bpe.hpp"
#include "models/tokenize/vocabulary.hpp"

namespace headgate::tokenize {

/// Derives the merges of SentencePiece's BPE from the scores of tokens, because its vocabularies have no list of
/// merges. Two neighbouring tokens may merge if their joined spelling is a token. The score of this token gives the
/// merge's rank: a higher score means a lower rank, and equal scores mean equal ranks. `scores` has one score per id.
/// NaN excludes a token from all merges.
///
/// Sorts the result by rank. Among merges that produce the same token, those with a longer left token come first.
/// Throws TokenizerError if tokens are too long.
std::vector<RankedMerge> merges_by_score(const Vocabulary& vocabulary, const std::vector<double>& scores);

}  // namespace headgate::tokenize
