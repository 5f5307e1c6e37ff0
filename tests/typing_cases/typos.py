"""Ten typical mistakes, one per line that ends in `# wrong`. Never run: a type checker must report every one."""

import grash

graph = grash.load_dataset("world")
search = grash.Search(graph, n_trails=8)  # wrong
search = grash.Search(graph, n_trials="8")  # wrong
search = grash.Search(graph, variant="combind")  # wrong
search = grash.Search(graph, budgte=3)  # wrong
model = grash.train(graph, epoch=20)  # wrong
model = grash.train(graph, optimizer="adagard")  # wrong
graph = grash.load_dataset("world", seperator=",")  # wrong
answers = model.predict(haed="Peru", relation="speaks")  # wrong
test = grash.evaluate(model, split="tset")  # wrong
print(search.run().best_confg)  # wrong
