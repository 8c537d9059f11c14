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
