#include <algorithm>
#include <iterator>
#include <utility>

#include "compile/cost_model.h"
#include "compile/draft.h"

namespace tiledev {

namespace {

bool can_merge(const Draft& from, const Draft& into) {
  if (from.kind != into.kind || from.kind == Draft::Kind::kWide) {
    return false;
  }
  if (from.kind == Draft::Kind::kChain) {
    return from.segment.work + into.segment.work <= kChainWork &&
           from.segment.flops + into.segment.flops <= kSmallFlops * 8;
  }
  if (from.extent != into.extent || from.tiling != into.tiling) {
    return false;
  }
  bool shares = false;
  for (const auto& [buffer, cut] : from.cuts) {
    const auto known = into.cuts.find(buffer);
    if (known == into.cuts.end()) {
      continue;
    }
    if (known->second.partial || !agree(cut, known->second)) {
      return false;
    }
    shares |= cut.span > 0 && cut.span == known->second.span;
  }
  return shares;
}

void merge_into(Draft& from, Draft& into) {
  for (auto& [buffer, cut] : from.cuts) {
    auto [known, fresh] = into.cuts.emplace(buffer, cut);
    if (!fresh) {
      known->second.plain &= cut.plain && cut.span == known->second.span;
      known->second.written |= cut.written;
    }
  }
  auto& steps = from.segment.steps;
  std::move(into.segment.steps.begin(), into.segment.steps.end(), std::back_inserter(steps));
  into.segment.steps = std::move(steps);
  into.segment.work += from.segment.work;
  into.segment.flops += from.segment.flops;
  into.successors.insert(from.successors.begin(), from.successors.end());
  into.successors.erase(&into);
}

}  // namespace

void merge_forward(std::vector<Draft*>& order) {
  for (size_t p = order.size(); p-- > 0;) {
    Draft& draft = *order[p];
    Draft* first = nullptr;
    for (Draft* successor : draft.successors) {
      if (first == nullptr || successor->position < first->position) {
        first = successor;
      }
    }
    if (first == nullptr || !can_merge(draft, *first)) {
      continue;
    }
    merge_into(draft, *first);
    order.erase(order.begin() + static_cast<std::ptrdiff_t>(p));
    for (size_t q = p; q < order.size(); ++q) {
      order[q]->position = q;
    }
    for (Draft* other : order) {
      if (other->successors.erase(&draft) > 0 && other != first) {
        other->successors.insert(first);
      }
    }
  }
}

}  // namespace tiledev
