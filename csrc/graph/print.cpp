#include "graph/print.h"

#include <sstream>
#include <unordered_map>

namespace tiledev {

namespace {

void print_meta(std::ostream& out, const TensorMeta& meta) {
  out << '[';
  for (size_t i = 0; i < meta.sizes.size(); ++i) {
    out << (i == 0 ? "" : ", ") << meta.sizes[i];
  }
  out << "] " << c10::toString(meta.dtype);
}

void print_operand(std::ostream& out, const Node& node, size_t i) {
  out << '%' << node.operands[i].buffer->id();
  print_meta(out, node.signature->operands[i]);
  out << (node.writes(i) ? " (written)" : "");
}

void print_node(std::ostream& out, const Node& node) {
  const char* separator = "";
  for (const auto& buffer : node.results) {
    out << separator << (buffer ? "%" + std::to_string(buffer->id()) : "none");
    separator = ", ";
  }
  out << (node.results.empty() ? "" : " = ") << node.name() << '(';
  for (size_t i = 0; i < node.operands.size(); ++i) {
    out << (i == 0 ? "" : ", ");
    print_operand(out, node, i);
  }
  out << ")\n";
}

bool is_tensor(const ArgSlot& slot) {
  return slot.kind == ArgKind::kTensor || slot.kind == ArgKind::kTensorList ||
         slot.kind == ArgKind::kOptionalTensorList;
}

// ".strides=[64, 1]", and what else a tensor has beside a shape and a dtype.
std::string layout(const TensorMeta& meta) {
  std::ostringstream out;
  out << ".strides=" << c10::IntArrayRef(meta.strides) << (meta.conj ? " (conj)" : "")
      << (meta.neg ? " (neg)" : "");
  return out.str();
}

// A constant as Python has it; schemas write dtypes and the like as integers.
void print_constant(std::ostream& out, const c10::Argument& argument, const c10::IValue& value) {
  c10::TypePtr type = argument.real_type();
  if (const auto optional = type->cast<c10::OptionalType>()) {
    type = optional->getElementType();
  }
  if (value.isInt() && type->kind() == c10::TypeKind::ScalarTypeType) {
    out << c10::toString(static_cast<c10::ScalarType>(value.toInt()));
  } else if (value.isInt() && type->kind() == c10::TypeKind::MemoryFormatType) {
    out << static_cast<c10::MemoryFormat>(value.toInt());
  } else {
    out << value;
  }
}

// "dim=[0]". Of a tensor no more than whether there is one; of a scalar what the key has of it.
std::string describe_argument(const c10::Argument& argument, const Signature& signature,
                              const ArgSlot& slot) {
  std::ostringstream out;
  out << argument.name();
  if (is_tensor(slot) && slot.note.empty()) {
    const char* separator = "=";
    for (uint32_t i = 0; i < slot.count; ++i) {
      const TensorRef& ref = signature.tensor_refs[slot.begin + i];
      out << separator << (ref.kind == TensorRef::Kind::kUndefined ? "None" : "a tensor");
      separator = ", ";
    }
  } else if (slot.kind == ArgKind::kConstant) {
    out << '=';
    print_constant(out, argument, slot.constant);
  }
  out << slot.note;
  return out.str();
}

}  // namespace

std::string describe(const SignaturePtr& signature) {
  if (!signature) {
    return "a host call";
  }
  std::ostringstream out;
  out << signature->op->name << '(';
  for (size_t i = 0; i < signature->operands.size(); ++i) {
    out << (i == 0 ? "" : ", ");
    print_meta(out, signature->operands[i]);
  }
  out << ')';
  return out.str();
}

std::string operand_name(const Signature& signature, size_t operand) {
  const auto& arguments = signature.op->op.schema().arguments();
  for (size_t a = 0; a < signature.args.size() && a < arguments.size(); ++a) {
    const ArgSlot& slot = signature.args[a];
    for (uint32_t i = 0; is_tensor(slot) && i < slot.count; ++i) {
      const TensorRef& ref = signature.tensor_refs[slot.begin + i];
      if (ref.kind == TensorRef::Kind::kOperand && ref.index == operand) {
        const std::string element = "[" + std::to_string(i) + "]";
        return arguments[a].name() + (slot.kind == ArgKind::kTensor ? "" : element);
      }
    }
  }
  return "operand " + std::to_string(operand);
}

std::pair<std::string, std::string> differences(const Signature& a, const Signature& b) {
  std::string here, there;
  const auto compare = [&](const std::string& mine, const std::string& its) {
    if (mine != its) {
      here += (here.empty() ? "" : ", ") + mine;
      there += (there.empty() ? "" : ", ") + its;
    }
  };
  const auto& arguments = a.op->op.schema().arguments();
  for (size_t i = 0; i < a.args.size() && i < b.args.size() && i < arguments.size(); ++i) {
    compare(describe_argument(arguments[i], a, a.args[i]),
            describe_argument(arguments[i], b, b.args[i]));
  }
  for (size_t i = 0; i < a.operands.size() && i < b.operands.size(); ++i) {
    compare(operand_name(a, i) + layout(a.operands[i]), operand_name(b, i) + layout(b.operands[i]));
  }
  if (!a.key.empty() && !b.key.empty()) {
    const auto dtype = [](const Signature& s) {
      return std::string("default dtype ") + c10::toString(static_cast<c10::ScalarType>(s.key[0]));
    };
    compare(dtype(a), dtype(b));
  }
  for (size_t i = 0; here.empty() && i < a.outputs.size() && i < b.outputs.size(); ++i) {
    const std::string name = "result " + std::to_string(i);
    compare(name + layout(a.outputs[i].meta), name + layout(b.outputs[i].meta));
  }
  // What has no words of its own.
  for (size_t i = 0; here.empty() && i < a.key.size() && i < b.key.size(); ++i) {
    const std::string name = "word " + std::to_string(i) + " of its key=";
    compare(name + std::to_string(a.key[i]), name + std::to_string(b.key[i]));
  }
  if (here.empty()) {
    compare("signature " + std::to_string(a.id), "signature " + std::to_string(b.id));
  }
  return {here, there};
}

std::string to_text(const std::vector<Node>& nodes) {
  std::ostringstream out;
  for (const Node& node : nodes) {
    print_node(out, node);
  }
  return out.str();
}

std::string to_dot(const std::vector<Node>& nodes) {
  std::ostringstream out;
  out << "digraph tiledev {\n  node [shape=box];\n";
  std::unordered_map<uint64_t, size_t> writer;
  for (size_t i = 0; i < nodes.size(); ++i) {
    out << "  n" << i << " [label=\"" << nodes[i].name() << "\"];\n";
    for_each_access(nodes[i], [&](const Buffer& buffer, bool reads, bool writes, bool) {
      const auto it = writer.find(buffer.id());
      if (reads && it != writer.end() && it->second != i) {
        out << "  n" << it->second << " -> n" << i << " [label=\"%" << buffer.id() << "\"];\n";
      }
      if (writes) {
        writer[buffer.id()] = i;
      }
    });
  }
  out << "}\n";
  return out.str();
}

}  // namespace tiledev
