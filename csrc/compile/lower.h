#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "compile/pipeline.h"

namespace tiledev {

// Taking nodes apart into steps: what the pass `lower` is made of. The functions that split a step
// add its parts to c.steps and return true, or leave everything as it is.

// `_foreach_*` ops: the op for one tensor, for each of the list. The step has no form yet.
bool split_foreach(Compilation& c, const Step& step);
// Fused optimizers: the step of each parameter.
bool split_fused(Compilation& c, const Step& step);
// Losses with a reduction: the sum of a tile's losses, and what follows from it at the end.
bool split_loss(Compilation& c, Step& step);
// Batch norm in evaluation, with weight and bias: an op with one result. (The other two are empty.)
bool split_batch_norm(Compilation& c, Step& step);
// The gradient of `select`: zeros, and a copy into its part of them.
bool split_select_backward(Compilation& c, const Step& step);
// A large `cat`: a copy of each input into its part of the result.
bool split_cat(Compilation& c, Step& step);

// The functional form of an op with out= arguments, where that is the same.
void lower_out_form(Step& step);
// Which call a step makes.
void choose_form(Step& step);
// `gather` and `scatter`, once their form is known: the part of a tensor that they can touch.
void narrow_to_index(Step& step);

bool is_complex(const Step& step);

// A step whose first arguments are these tensors, all in order.
Step make_step(uint32_t node, const char* name, const char* overload, const char* callee_overload,
               std::vector<View> operands, std::vector<View> outputs);
void add_constant(Step& step, c10::IValue value);

const OpTraits& traits_of(const c10::OperatorHandle& op);

// Adds the parts that make(i) gives for the elements of an op's lists; none if there is one that it
// does not give.
bool split_each(Compilation& c, uint32_t count,
                const std::function<std::optional<Step>(uint32_t)>& make);

// Whether an op is large enough to be parted.
inline bool worth_parting(const Compilation& c, const Step& step) {
  constexpr int64_t kWorthParting = 1024;
  return step.work >= kWorthParting || c.options.mode == TilingMode::kTiny;
}

}  // namespace tiledev
