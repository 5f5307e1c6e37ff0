"""What the how-tos show. Never run: a type checker must report nothing."""

import grash

graph = grash.load_dataset("graph.csv", separator="comma", columns=("start", "type", "end"), n_valid=100)
graph = grash.from_triples([("Peru", "speaks", "Spanish")], duplicates="keep")
search = grash.Search(
    graph, model="complex", dim=64, max_epochs=20, n_trials=16, space="wide", variant="graph", fixed={"lr": 0.1}
)
search = grash.Search("world", models=["complex", "rotate"], epochs=20, engine="sequential", out="runs/x")
print(search.plan(probe=False))
result = search.run(callbacks=[grash.Callback()], max_seconds=60)
model = grash.train(graph, model="rotate", learning_rate=0.1, optimizer="lazy_adam", patience=None)
print(result.best_config.lr, [answer.name for answer in model.predict(head="Peru", relation="speaks", k=3)])
print(model.evaluate(split="valid", sample=100).both)
