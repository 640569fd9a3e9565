(* X Theorem 4: the conditions of one certificate. `coqc` checks the file with the library coq-interval.
   Doubles of the certificate are whole numbers over powers of two. Sums of products of them are computed exactly;
   goals about real numbers state an upper bound on each quantity from those before it. Equations are those of
   docs/proofs/any_norm.md, in its order. *)
From Coq Require Import ZArith List Bool Reals.
From Interval Require Import Tactic.
Import ListNotations.
Open Scope Z_scope.

Ltac computed := vm_compute; reflexivity.
Ltac closed := repeat split; interval with (i_prec 120).

(* Vectors and their sums *)
Fixpoint dot (x y : list Z) : Z :=
  match x, y with a :: x', b :: y' => a * b + dot x' y' | _, _ => 0 end.
Definition scaled (k : Z) := map (Z.mul k).
Definition plus (x y : list Z) := map (fun p => fst p + snd p) (combine x y).
Definition minus (x y : list Z) := map (fun p => fst p - snd p) (combine x y).
Definition between (j : Z) (x : list Z) (k : Z) (y : list Z) := minus (scaled j x) (scaled k y).
Definition total := fold_right Z.add 0.
Definition products (x : list Z) := map (fun row => dot row x).
Definition mean (weights : list Z) (rows : list (list Z)) :=
  fold_right plus (scaled 0 (hd [] rows)) (map (fun p => scaled (fst p) (snd p)) (combine weights rows)).

(* Norms: upper bounds by whole numbers *)
Definition root (square : Z) := Z.sqrt_up square.
Definition absolute (x : list Z) := total (map Z.abs x).
Definition greatest (x : list Z) := fold_right Z.max 0 (map Z.abs x).
Definition euclidean (x : list Z) := root (dot x x).
Fixpoint lengths (rows width : nat) (x : list Z) :=
  match rows with
  | O => []
  | S rest => euclidean (firstn width x) :: lengths rest width (skipn width x)
  end.
Definition longest_row (rows width : nat) (x : list Z) := greatest (lengths rows width x).
Definition all_rows (rows width : nat) (x : list Z) := total (lengths rows width x).

(* Rows of the selected tokens, the scores of tokens, and comparisons *)
Definition rows (keys : list (list Z)) (places : list (nat * nat)) :=
  map (fun p => minus (nth (fst p) keys []) (nth (snd p) keys [])) places.
Definition scored (tokens : list (list Z)) (head : list Z) (place : nat) := dot (nth place tokens []) head.
Definition signed (signs gaps : list Z) := map (fun p => fst p * snd p) (combine signs gaps).
Definition pick {A} (which : list nat) (all : list A) (none : A) := map (fun r => nth r all none) which.
Fixpoint pairs (all : list (list Z)) : list (list Z) :=
  match all with [] => [] | r :: rest => map (minus r) rest ++ pairs rest end.
Definition at_least (bound : Z) := forallb (Z.leb bound).
Definition at_most (bound : Z) := forallb (fun size => size <=? bound).
Definition below (bounds sizes : list Z) :=
  (length bounds =? length sizes)%nat && forallb (fun p => snd p <=? fst p) (combine bounds sizes).
Definition means (mu all : list (list Z)) := map (fun weights => mean weights all) mu.
Definition rests (k : Z) (others sums : list (list Z)) :=
  map (fun p => minus (scaled k (fst p)) (snd p)) (combine others sums).
Definition weighted (mu : list (list Z)) (near : list Z) := map (fun weights => dot weights near) mu.
Definition lags (k : Z) (ahead far : list Z) := minus ahead (scaled k far).

