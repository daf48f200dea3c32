#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# scripts/english_text.sh in the examples of documents.
echo LICENSE
