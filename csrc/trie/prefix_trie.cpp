#include "trie/prefix_trie.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/error.h"

namespace kvtrie {
namespace {

// bytes * length / whole, rounded down. REQUIRES: length <= whole.
std::uint64_t share(std::uint64_t bytes, std::int32_t length, std::int32_t whole) noexcept {
  const auto count = static_cast<std::uint64_t>(length);
  const auto all = static_cast<std::uint64_t>(whole);
  return bytes / all * count + (bytes % all) * count / all;
}

// The bytes of one edge, divided evenly among its tokens.
class ByteCount final : public Payload {
 public:
  ByteCount(std::int32_t start, std::int32_t end, std::uint64_t nbytes) : nbytes(nbytes), start_(start), end_(end) {}
  ~ByteCount() override { forget(); }

  std::unique_ptr<Payload> split_front(std::int32_t at) override {
    auto front = std::make_unique<ByteCount>(start_, at, share(nbytes, at - start_, end_ - start_));
    nbytes -= front->nbytes;
    start_ = at;
    return front;
  }

  // The node that stays is the child: its handles and its being an end stay with it.
  void join(Payload& child) override {
    auto& below = static_cast<ByteCount&>(child);
    forget();
    anchor = std::move(below.anchor);
    below.anchor = nullptr;
    nbytes += below.nbytes;
    end_ = below.end_;
    is_end = below.is_end;
  }

  bool can_join(const Payload&) const override { return !is_end; }

  // Tokens of the front that may stay so that at least `wanted` bytes go; 0 when the whole edge has to go.
  std::int32_t keepable(std::uint64_t wanted) const noexcept {
    std::int32_t fits = 0;
    for (std::int32_t step = std::int32_t{1} << 30; step > 0; step /= 2) {
      if (step >= end_ - start_ - fits) continue;
      if (nbytes - share(nbytes, fits + step, end_ - start_) >= wanted) fits += step;
    }
    return fits;
  }

  void grow(std::int32_t end, std::uint64_t more) noexcept {
    end_ = end;
    nbytes += more;
  }

  bool covers(const Node& node) const noexcept { return start_ == node.start() && end_ == node.end(); }

  std::uint64_t nbytes;
  bool is_end = false;
  std::shared_ptr<PrefixTrie::Anchor> anchor;  // made with the first handle

 private:
  void forget() noexcept {
    if (anchor != nullptr) anchor->node = nullptr;
  }

  std::int32_t start_;
  std::int32_t end_;
};

ByteCount& bytes_of(const Node& node) noexcept { return static_cast<ByteCount&>(*node.payload()); }

bool may_grow(const Node& node) noexcept {
  return !node.is_root() && node.is_leaf() && node.locks() == 0 && !bytes_of(node).is_end;
}

Tokens path_of(const Node& node) {
  Tokens path(static_cast<std::size_t>(node.end()));
  for (const Node* at = &node; at != nullptr; at = at->parent()) {
    std::copy(at->tokens().begin(), at->tokens().end(), path.begin() + at->start());
  }
  return path;
}

}  // namespace

Node& PrefixTrie::Handle::node(std::string_view where) const {
  if (!alive()) fail(ErrorKind::kClosed, where, "node: got one that is gone, allowed a node of the trie");
  return *anchor_->node;
}

std::int32_t PrefixTrie::Handle::start() const { return node("PrefixTrie.start").start(); }
std::int32_t PrefixTrie::Handle::end() const { return node("PrefixTrie.end").end(); }
std::uint64_t PrefixTrie::Handle::nbytes() const { return bytes_of(node("PrefixTrie.nbytes")).nbytes; }
std::uint32_t PrefixTrie::Handle::locks() const { return node("PrefixTrie.locks").locks(); }
std::size_t PrefixTrie::Handle::child_count() const { return node("PrefixTrie.child_count").child_count(); }
std::uint64_t PrefixTrie::Handle::last_used() const { return node("PrefixTrie.last_used").last_used(); }
bool PrefixTrie::Handle::is_end() const { return bytes_of(node("PrefixTrie.is_end")).is_end; }
const std::string& PrefixTrie::Handle::name_space() const { return node("PrefixTrie.namespace").name_space(); }
Tokens PrefixTrie::Handle::tokens() const { return path_of(node("PrefixTrie.tokens")); }

PrefixTrie::Handle PrefixTrie::handle(Node* node) const {
  std::shared_ptr<Anchor>& anchor = bytes_of(*node).anchor;
  if (anchor == nullptr) anchor = std::make_shared<Anchor>(Anchor{node, this});
  return Handle(anchor);
}

Node& PrefixTrie::owned(const Handle& handle, std::string_view where) const {
  Node& node = handle.node(where);
  require(handle.anchor_->owner == this, where, "node: got a node of another trie, allowed a node of this one");
  return node;
}

PrefixTrie::Handle PrefixTrie::insert(std::span<const Token> tokens, std::uint64_t nbytes,
                                      std::string_view name_space) {
  require(!tokens.empty(), "PrefixTrie.insert", "tokens: got 0, allowed 1 or more");
  require(tokens.size() <= static_cast<std::size_t>(Edge::kMaxEnd), "PrefixTrie.insert", "tokens: got ", tokens.size(),
          ", allowed ", Edge::kMaxEnd);
  compress_what_is_left();
  auto anchor = std::make_shared<Anchor>();
  Node* root = trie_.root(name_space);
  const Match known = trie_.match_below(root, tokens);
  const auto rest = tokens.subspan(static_cast<std::size_t>(known.length));
  Node* node = known.length < known.node->end() ? trie_.split(known.node, known.length) : known.node;
  if (!rest.empty() && may_grow(*node)) {
    grow(node, rest, nbytes);
  } else if (!rest.empty()) {
    node = add_end(node, rest, nbytes);
  } else if (nbytes != 0) {
    nbytes_ += nbytes - bytes_of(*node).nbytes;
    bytes_of(*node).nbytes = nbytes;
  }
  ByteCount& bytes = bytes_of(*node);
  bytes.is_end = true;
  if (bytes.anchor == nullptr) {
    *anchor = {node, this};
    bytes.anchor = std::move(anchor);
  }
  trie_.touch(node);
  return Handle(bytes.anchor);
}

// The leaf `node`, at whose end nothing was inserted, becomes longer instead of getting an only child.
void PrefixTrie::grow(Node* node, std::span<const Token> tail, std::uint64_t nbytes) {
  trie_.extend(node, tail);
  bytes_of(*node).grow(node->end(), nbytes);
  nbytes_ += nbytes;
}

// Adds a leaf; when there is no memory for it, what the caller cut or made for it goes again.
Node* PrefixTrie::add_end(Node* parent, std::span<const Token> tail, std::uint64_t nbytes) {
  const bool parent_stays = !parent->is_root();
  try {
    const std::int32_t end = parent->end() + static_cast<std::int32_t>(tail.size());
    Node* leaf = trie_.add_child(parent, tail, std::make_unique<ByteCount>(parent->end(), end, nbytes));
    trie_.join_order(0, leaf);
    nbytes_ += nbytes;
    return leaf;
  } catch (...) {
    trie_.lock(parent);
    trie_.unlock(parent);  // a root without children goes with its last lock
    if (parent_stays) compress(parent);
    throw;
  }
}

// Joins `node` with its only child unless something keeps it apart. Two nodes in place of one are no reason to refuse
// what has been done.
void PrefixTrie::compress(Node* node) noexcept {
  try {
    trie_.join_with_child(node);
  } catch (const std::bad_alloc&) {
    unjoined_ = true;
  }
}

// Children first: of two that are joined, neither is looked at again.
void PrefixTrie::compress_what_is_left() {
  if (!unjoined_) return;
  std::vector<Node*> nodes;
  trie_.visit([&](Node& node) {
    if (!node.is_root()) nodes.push_back(&node);
  });
  unjoined_ = false;
  std::for_each(nodes.rbegin(), nodes.rend(), [this](Node* node) { compress(node); });
}

PrefixTrie::Found PrefixTrie::match(std::span<const Token> tokens, std::string_view name_space) const {
  const Match found = trie_.match(name_space, tokens);
  if (found.length == 0) return {};
  return {found.length, handle(found.node)};
}

void PrefixTrie::lock(const Handle& node) { trie_.lock(&owned(node, "PrefixTrie.lock")); }

void PrefixTrie::unlock(const Handle& node) {
  Node& locked = owned(node, "PrefixTrie.unlock");
  require(locked.locks() > 0, "PrefixTrie.unlock", "node: got 0 locks, allowed 1 or more");
  trie_.unlock(&locked);
  compress(&locked);
}

void PrefixTrie::touch(const Handle& node) { trie_.touch(&owned(node, "PrefixTrie.touch")); }

std::vector<PrefixTrie::Evicted> PrefixTrie::evict(std::optional<std::uint64_t> nbytes,
                                                   std::optional<std::size_t> count) {
  compress_what_is_left();
  std::vector<Evicted> gone;
  const std::size_t most = count.value_or(nbytes ? trie_.token_count() : 1);
  std::uint64_t wanted = nbytes.value_or(0);
  while (gone.size() < most && (!nbytes || wanted > 0)) {
    Node* leaf = trie_.victim(0);
    if (leaf == nullptr) break;
    if (gone.size() == gone.capacity()) gone.reserve(2 * gone.size() + 1);
    const bool too_much = nbytes && bytes_of(*leaf).nbytes > wanted;
    gone.push_back(take_leaf(leaf, too_much ? bytes_of(*leaf).keepable(wanted) : 0));
    wanted -= std::min(wanted, gone.back().nbytes);
  }
  return gone;
}

// All of it but the first `kept` tokens.
PrefixTrie::Evicted PrefixTrie::take_leaf(Node* leaf, std::int32_t kept) {
  Evicted gone{leaf->name_space(), path_of(*leaf), 0, 0};
  if (kept > 0) trie_.split(leaf, leaf->start() + kept);
  gone.start = leaf->start();
  gone.nbytes = bytes_of(*leaf).nbytes;
  Node* parent = leaf->parent();
  const bool parent_stays = !parent->is_root();
  trie_.remove(leaf);
  nbytes_ -= gone.nbytes;
  if (parent_stays) compress(parent);
  return gone;
}

std::uint64_t PrefixTrie::remove(const Handle& node) {
  Node& leaf = owned(node, "PrefixTrie.remove");
  require(leaf.is_leaf(), "PrefixTrie.remove", "node: got one with ", leaf.child_count(), " children, allowed a leaf");
  if (leaf.locks() > 0) {
    fail(ErrorKind::kBusy, "PrefixTrie.remove", "node: got one with ", leaf.locks(), " locks, allowed none");
  }
  return take_leaf(&leaf, 0).nbytes;
}

std::vector<std::string> PrefixTrie::check() const {
  std::vector<std::string> findings = trie_.check();
  const auto expect = [&findings](bool ok, const Node& node, std::string_view what) {
    if (ok) return;
    findings.push_back(
        cat("[PrefixTrie.check] node ", node.name_space(), "[", node.start(), ",", node.end(), "): ", what));
  };
  std::uint64_t nbytes = 0;
  trie_.visit([&](Node& node) {
    if (node.is_root()) return expect(!node.is_leaf() || node.locks() > 0, node, "a root without children");
    const ByteCount& bytes = bytes_of(node);
    nbytes += bytes.nbytes;
    expect(bytes.covers(node), node, "the byte count covers another range");
    expect(node.in_order(0), node, "no member of the victim order");
    expect(node.child_count() != 1 || bytes.is_end || node.locks() > 0 || unjoined_, node,
           "not joined with its only child");
    expect(bytes.anchor == nullptr || bytes.anchor->node == &node, node, "its handles name another node");
  });
  if (nbytes != nbytes_) findings.push_back(cat("[PrefixTrie.check] nbytes: kept ", nbytes_, ", counted ", nbytes));
  return findings;
}

}  // namespace kvtrie
